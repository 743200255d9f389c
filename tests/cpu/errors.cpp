// SPDX-License-Identifier: MIT
// Calls that cannot run: each throws the error that says why, names the argument, and has written
// nothing by then.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <mhla/cpu/pipeline.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/error_message.hpp"

namespace {

using call::bitwise_equal;
using call::operands;
using namespace mhla;

// The arguments of a forward and a backward call, to be spoilt one at a time.
struct Arguments {
  call::Operands<float> operands;
  call::HostTensor<float, 4> y_memory;
  call::Gradients<float> gradient_memory;
  Workspace memory;

  TensorView<float, 4> q, k, v, dy;
  TensorView<float, 3> mix;
  TensorView<float, 4> y;
  GradientViews<float> gradients;
  WorkspaceView workspace;

  template <class V>
  Arguments(const V& attention, const Shape& shape)
      : operands(call::operands<float>(attention, shape)),
        y_memory(operands.dy),
        gradient_memory(operands),
        memory(std::max(
            mhla::forward_workspace_size<float>(attention, operands.shape(), backend::device()),
            mhla::backward_workspace_size<float>(attention, operands.shape(), backend::device()))),
        q(operands.q),
        k(operands.k),
        v(operands.v),
        dy(operands.dy),
        mix(operands.mix),
        y(y_memory),
        gradients(gradient_memory.views()),
        workspace(memory) {}

  template <class V>
  void forward(const V& attention) {
    forward_into(attention, backend::device(), q, k, v, mix, y, workspace);
  }
  template <class V>
  void backward(const V& attention) {
    backward_into(attention, backend::device(), q, k, v, mix, dy, gradients, Update::overwrite,
                  workspace);
  }
  // Destinations and operands hold what they held at first.
  bool untouched(const call::Operands<float>& at_first) const {
    return bitwise_equal(y_memory.view(), at_first.dy.view()) &&
           bitwise_equal(gradient_memory.query.view(), at_first.q.view()) &&
           bitwise_equal(gradient_memory.key.view(), at_first.k.view()) &&
           bitwise_equal(gradient_memory.value.view(), at_first.v.view()) &&
           bitwise_equal(gradient_memory.mix.view(), at_first.mix.view()) &&
           bitwise_equal(operands.q.view(), at_first.q.view()) &&
           bitwise_equal(operands.k.view(), at_first.k.view()) &&
           bitwise_equal(operands.v.view(), at_first.v.view()) &&
           bitwise_equal(operands.mix.view(), at_first.mix.view()) &&
           bitwise_equal(operands.dy.view(), at_first.dy.view());
  }
};

// Moves a view by so many bytes.
template <class View>
void displace(View& view, Index bytes) {
  view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) +
                                                    static_cast<std::uintptr_t>(bytes));
}

enum class Pass { forward, backward, both };
using Spoil = std::function<void(Arguments&)>;

// Fails unless the spoilt call throws an E that contains `parts`, and has written nothing.
template <class E, class V, class... Parts>
void check_refused(const V& attention, const Shape& shape, Pass pass, const Spoil& spoil,
                   const Parts&... parts) {
  for (const bool forward : {true, false}) {
    if (pass != Pass::both && (pass == Pass::forward) != forward) continue;
    CAPTURE(forward);
    Arguments arguments(attention, shape);
    const call::Operands<float> at_first = arguments.operands;
    spoil(arguments);
    const std::string message = error_message<E>(
        [&] { forward ? arguments.forward(attention) : arguments.backward(attention); });
    INFO(message);
    CHECK(says(message, "mhla", parts...));
    CHECK(arguments.untouched(at_first));
  }
}

const Attention<Relu, Blocks1D> sequence{.blocks = {.block = 4}};
const Attention<Relu, Blocks2D> image{.blocks = {.grid = {3, 5}, .block = {2, 2}}};
constexpr Shape shape{2, 6, 3, 15, 15, 5, 7};

}  // namespace

TEST_CASE("errors: the calls that are spoilt below run as they are", "[cpu]") {
  for (const Shape& s : {shape, Shape{2, 6, 3, 15, 15, 5, 7, 6}}) {
    Arguments arguments(sequence, s);
    CHECK_NOTHROW(arguments.forward(sequence));
    CHECK_NOTHROW(arguments.backward(sequence));
    Arguments of_image(image, s);
    CHECK_NOTHROW(of_image.forward(image));
    CHECK_NOTHROW(of_image.backward(image));
  }
}

TEST_CASE("errors: extents of operands that disagree", "[cpu]") {
  const auto check = [](const Spoil& spoil, const char* argument, const char* axis) {
    check_refused<ShapeError>(sequence, shape, Pass::both, spoil, argument, axis);
  };
  check([](Arguments& a) { a.k.extent[0] = 1; }, "k: axis batch is 1 but must be 2", "q");
  check([](Arguments& a) { a.k.extent[1] = a.v.extent[1] = 4; }, "k: axis heads is 4", "multiple");
  check([](Arguments& a) { a.k.extent[1] = 2; }, "v: axis heads is 3 but must be 2", "k");
  check([](Arguments& a) { a.k.extent[3] = 4; }, "k: axis key_dim is 4 but must be 5", "q");
  check([](Arguments& a) { a.v.extent[0] = 1; }, "v: axis batch is 1 but must be 2", "q");
  check([](Arguments& a) { a.v.extent[1] = 2; }, "v: axis heads is 2 but must be 3", "k");
  check([](Arguments& a) { a.v.extent[2] = 14; }, "v: axis tokens is 14 but must be 15", "k");
  check([](Arguments& a) { a.q.extent[1] = 5; }, "axis heads", "multiple");
  check([](Arguments& a) { a.k.extent[1] = a.v.extent[1] = 0; }, "axis heads", "multiple");
  check([](Arguments& a) { a.mix.extent[0] = 2; }, "mix: axis heads is 2 but must be 1", "6");
  check([](Arguments& a) { a.mix.extent[0] = 0; }, "mix: axis heads is 0", "6");
  check([](Arguments& a) { a.mix.extent[1] = 3; }, "mix: axis query blocks is 3 but must be 4",
        "corner");
  check([](Arguments& a) { a.mix.extent[2] = 3; }, "mix: axis key blocks is 3 but must be 4",
        "corner");
  check([](Arguments& a) { a.q.extent[0] = a.k.extent[0] = a.v.extent[0] = -1; }, "negative", "-1");
}

TEST_CASE("errors: extents of destinations and of the output's gradient", "[cpu]") {
  const auto check = [](Pass pass, const Spoil& spoil, const char* part) {
    check_refused<ShapeError>(sequence, shape, pass, spoil, part);
    check_refused<ShapeError>(image, shape, pass, spoil, part);
  };
  const char* axes[] = {"batch", "heads", "tokens", "dim"};
  for (int axis = 0; axis < 4; ++axis) {
    for (const Index change : {-1, +1}) {
      const auto of = [&](const char* argument) {
        return std::string(argument) + ": axis " + axes[axis];
      };
      check(
          Pass::forward, [&](Arguments& a) { a.y.extent[axis] += change; }, of("y").c_str());
      check(
          Pass::backward, [&](Arguments& a) { a.dy.extent[axis] += change; }, of("dy").c_str());
      check(
          Pass::backward, [&](Arguments& a) { a.gradients.query.view.extent[axis] += change; },
          of("dq").c_str());
      check(
          Pass::backward, [&](Arguments& a) { a.gradients.key.view.extent[axis] += change; },
          of("dk").c_str());
      check(
          Pass::backward, [&](Arguments& a) { a.gradients.value.view.extent[axis] += change; },
          of("dv").c_str());
    }
  }
  const char* mix_axes[] = {"heads", "query blocks", "key blocks"};
  for (int axis = 0; axis < 3; ++axis)
    check(
        Pass::backward, [&](Arguments& a) { ++a.gradients.mix.view.extent[axis]; },
        (std::string("dmix: axis ") + mix_axes[axis]).c_str());
}

TEST_CASE("errors: destinations that share elements", "[cpu]") {
  const auto check = [](Pass pass, const Spoil& spoil, const char* part) {
    check_refused<ShapeError>(sequence, Shape{2, 3, 3, 15, 15, 5, 5}, pass, spoil, part);
  };
  SECTION("with themselves") {
    const char* own = "every element to be its own";
    check(
        Pass::forward, [](Arguments& a) { a.y.stride[1] = 0; }, own);
    check(
        Pass::forward, [](Arguments& a) { a.y.stride[2] = a.y.stride[3]; }, own);
    check(
        Pass::forward, [](Arguments& a) { a.y.stride[2] = 4; }, own);
    check(
        Pass::backward, [](Arguments& a) { a.gradients.query.view.stride[0] = 0; }, "dq: ");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.key.view.stride[2] = 0; }, "dk: ");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.value.view.stride[3] = 0; }, "dv: ");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.mix.view.stride[1] = 1; }, "dmix: ");
  }
  SECTION("with an operand") {
    check(
        Pass::forward, [](Arguments& a) { a.y = a.q; }, "y: shares memory");
    check(
        Pass::forward, [](Arguments& a) { a.y = a.k; }, "y: shares memory");
    check(
        Pass::forward, [](Arguments& a) { a.y = a.v; }, "y: shares memory");
    check(
        Pass::forward, [](Arguments& a) { a.mix.data = a.y.data + 17; }, "y: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.query = a.q; }, "dq: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.query = a.dy; }, "dq: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.key = a.q; }, "dk: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.key = a.k; }, "dk: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.key = a.v; }, "dk: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.key = a.dy; }, "dk: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.value = a.v; }, "dv: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.value = a.dy; }, "dv: shares memory");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.mix = a.mix; }, "dmix: shares memory");
    for (const char* name : {"dq: ", "dk: ", "dv: "})
      check(
          Pass::backward,
          [&](Arguments& a) {
            const TensorView<float, 4> gradient = name[1] == 'q'   ? a.gradients.query.view
                                                  : name[1] == 'k' ? a.gradients.key.view
                                                                   : a.gradients.value.view;
            a.mix.data = gradient.data + 17;
          },
          name);
    check(
        Pass::backward,
        [](Arguments& a) {
          a.gradients = {skip, skip, skip, a.gradients.mix};
          a.gradients.mix.view.data = a.dy.data + 3;
        },
        "dmix: shares memory");
  }
  SECTION("with each other") {
    check(
        Pass::backward, [](Arguments& a) { a.gradients.key = a.gradients.query; },
        "dq: shares memory with dk");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.value = a.gradients.query; },
        "dq: shares memory with dv");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.value = a.gradients.key; },
        "dk: shares memory with dv");
    check(
        Pass::backward,
        [](Arguments& a) { a.gradients.mix.view.data = a.gradients.query.view.data; },
        "dq: shares memory with dmix");
    check(
        Pass::backward, [](Arguments& a) { a.gradients.mix.view.data = a.gradients.key.view.data; },
        "dk: shares memory with dmix");
    check(
        Pass::backward,
        [](Arguments& a) { a.gradients.mix.view.data = a.gradients.value.view.data + 2; },
        "dv: shares memory with dmix");
  }
  SECTION("by one element") {
    check(
        Pass::forward, [](Arguments& a) { a.y.data = a.q.data + a.q.size() - 1; },
        "y: shares memory");
  }
}

TEST_CASE("errors: tensors inside the workspace", "[cpu]") {
  const auto check = [](Pass pass, const auto& tensor, const char* name) {
    for (const bool at_end : {false, true}) {
      // With room on both sides of the workspace: what lies there belongs to nobody else.
      mhla::Workspace room;
      check_refused<mhla::WorkspaceError>(
          sequence, shape, pass,
          [&](Arguments& a) {
            auto& view = tensor(a);
            const Index bytes = view.size() * Index{sizeof(float)};
            const Index margin =
                mhla::ceil_div(bytes, mhla::workspace_alignment) * mhla::workspace_alignment;
            room = mhla::Workspace(a.workspace.size + 2 * margin);
            a.workspace.data = room.data() + margin;
            view.data = reinterpret_cast<float*>(a.workspace.data +
                                                 (at_end ? a.workspace.size - 4 : 4 - bytes));
          },
          std::string("workspace: shares memory with ") + name + ";");
    }
  };
  const auto check_operand = [&](auto Arguments::*tensor, const char* name) {
    check(
        Pass::both, [=](Arguments & a) -> auto& { return a.*tensor; }, name);
  };
  check_operand(&Arguments::q, "q");
  check_operand(&Arguments::k, "k");
  check_operand(&Arguments::v, "v");
  check_operand(&Arguments::mix, "mix");
  check(
      Pass::forward, [](Arguments & a) -> auto& { return a.y; }, "y");
  check(
      Pass::backward, [](Arguments & a) -> auto& { return a.dy; }, "dy");
  check(
      Pass::backward, [](Arguments & a) -> auto& { return a.gradients.query.view; }, "dq");
  check(
      Pass::backward, [](Arguments & a) -> auto& { return a.gradients.key.view; }, "dk");
  check(
      Pass::backward, [](Arguments & a) -> auto& { return a.gradients.value.view; }, "dv");
  check(
      Pass::backward, [](Arguments & a) -> auto& { return a.gradients.mix.view; }, "dmix");
}

TEST_CASE("errors: addresses that are not aligned to elements", "[cpu]") {
  const auto check = [](Pass pass, const Spoil& spoil, const char* argument) {
    check_refused<ShapeError>(sequence, shape, pass, spoil,
                              std::string("mhla: ") + argument +
                                  ": the address is not a multiple of 4, the size of its elements");
  };
  for (const Index bytes : {1, 2, 3}) {
    CAPTURE(bytes);
    check(
        Pass::both, [&](Arguments& a) { displace(a.q, bytes); }, "q");
    check(
        Pass::both, [&](Arguments& a) { displace(a.k, bytes); }, "k");
    check(
        Pass::both, [&](Arguments& a) { displace(a.v, bytes); }, "v");
    check(
        Pass::both, [&](Arguments& a) { displace(a.mix, bytes); }, "mix");
    check(
        Pass::forward, [&](Arguments& a) { displace(a.y, bytes); }, "y");
    check(
        Pass::backward, [&](Arguments& a) { displace(a.dy, bytes); }, "dy");
    check(
        Pass::backward, [&](Arguments& a) { displace(a.gradients.query.view, bytes); }, "dq");
    check(
        Pass::backward, [&](Arguments& a) { displace(a.gradients.key.view, bytes); }, "dk");
    check(
        Pass::backward, [&](Arguments& a) { displace(a.gradients.value.view, bytes); }, "dv");
    check(
        Pass::backward, [&](Arguments& a) { displace(a.gradients.mix.view, bytes); }, "dmix");
  }

  // Where there is no element, there is no address.
  Arguments empty(sequence, Shape{2, 6, 3, 15, 15, 5, 0});
  displace(empty.v, 1), displace(empty.dy, 1), displace(empty.y, 1);
  displace(empty.gradients.value.view, 1);
  CHECK_NOTHROW(empty.forward(sequence));
  CHECK_NOTHROW(empty.backward(sequence));
}

#if !defined(MHLA_TEST_CUDA)
// CUDA says so by CudaError: cuda/pointers.
TEST_CASE("errors: elements without an address", "[cpu]") {
  const auto check = [](Pass pass, const Spoil& spoil, const char* argument) {
    check_refused<ShapeError>(sequence, shape, pass, spoil, std::string("mhla: ") + argument,
                              " elements but a null address");
  };
  check(
      Pass::both, [](Arguments& a) { a.q.data = nullptr; }, "q: has ");
  check(
      Pass::both, [](Arguments& a) { a.k.data = nullptr; }, "k: has ");
  check(
      Pass::both, [](Arguments& a) { a.v.data = nullptr; }, "v: has ");
  check(
      Pass::both, [](Arguments& a) { a.mix.data = nullptr; }, "mix: has ");
  check(
      Pass::forward, [](Arguments& a) { a.y.data = nullptr; }, "y: has ");
  check(
      Pass::backward, [](Arguments& a) { a.dy.data = nullptr; }, "dy: has ");
  check(
      Pass::backward, [](Arguments& a) { a.gradients.query.view.data = nullptr; }, "dq: has ");
  check(
      Pass::backward, [](Arguments& a) { a.gradients.mix.view.data = nullptr; }, "dmix: has ");
  check_refused<mhla::WorkspaceError>(
      sequence, shape, Pass::both, [](Arguments& a) { a.workspace.data = nullptr; },
      "workspace: has ", " bytes but a null address");

  // A mask without one keeps every token.
  Arguments masked(sequence, shape);
  const mhla::TensorView<const std::uint8_t, 2> everything{
      nullptr, {shape.batch, shape.query_tokens}, {shape.query_tokens, 1}};
  CHECK_NOTHROW(masked.forward(mhla::Padded{sequence, mhla::TokenMasks{everything, everything}}));
}

#endif

TEST_CASE("errors: a gradient that is skipped is not looked at", "[cpu]") {
  Arguments arguments(sequence, shape);
  arguments.gradients.query = mhla::skip;
  displace(arguments.gradients.query.view, 1);
  arguments.gradients.value = skip;
  arguments.gradients.value.view = arguments.v;  // not wanted all the same
  CHECK_NOTHROW(arguments.backward(sequence));
}

#if defined(MHLA_TEST_ALL_CASES)  // said by checked_problem(), as the case above

#endif

TEST_CASE("errors: sizes that overflow", "[cpu]") {
  constexpr Index huge = std::numeric_limits<Index>::max() / 2;
  const auto message = [](const Shape& s) {
    return error_message<ShapeError>(
        [&] { mhla::backward_workspace_size<float>(sequence, s, backend::device()); });
  };
  CHECK(says(message({1, 1, 1, 4, 4, huge, 5, 1, 1, 1}), "q: axis key_dim", "too large"));
  CHECK(says(message({1, 1, 1, 4, 4, 5, huge, 1, 1, 1}), "v: axis value_dim", "too large"));
  CHECK(
      says(message({1, 1, 1, 4, 4, Index{1} << 32, Index{1} << 32, 1, 1, 1}), "overflows 64 bits"));
  // Tokens that nobody would live to see counted.
  constexpr Index many = Index{1} << 50;
  const Attention<Relu, Blocks1D> whole{.blocks = {.block = many}};
  for (const Shape& large :
       {Shape{1, 1, 1, many, 4, 4, 5, 1, 1, 1}, Shape{1, 1, 1, 4, many, 4, 5, 1, 1, 1},
        Shape{many, 1, 1, 4, 4, 4, 4, 1, 1, 1}})
    CHECK(says(error_message<ShapeError>(
                   [&] { mhla::forward_workspace_size<float>(whole, large, backend::device()); }),
               "axis tokens is", "more than the 2^36 tokens"));
}
