// SPDX-License-Identifier: MIT
// mhla_run_released: the released models in C++, from their checkpoints.
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mhla/fork_join.hpp>
#include <string>
#include <vector>

#include "models.hpp"
#include "run.hpp"

namespace {

using namespace released;

constexpr const ReleasedModel* all_models[] = {&deit, &dit, &wan, &language_model};

constexpr char usage[] =
    "mhla_run_released MODEL CHECKPOINT INPUT... [--option value]...\n"
    "\n"
    "  deit CHECKPOINT IMAGE.npy                  five likeliest classes of each image\n"
    "  dit CHECKPOINT LATENT.npy --timestep T[,T...] --label L[,L...]\n"
    "  wan CHECKPOINT X.npy                       one self-attention layer\n"
    "  lm CHECKPOINT ID...                        goes on from a prompt of token ids\n"
    "\n"
    "CHECKPOINT is a .safetensors file; the sizes are in config.json beside it, in its metadata's\n"
    "`config`, or in --config FILE. Further: --prefix P (tensors' names begin with it), --output\n"
    "FILE.npy (writes the result), --bfloat16 (parameters and attention), --threads N; lm:\n"
    "--tokens N, --temperature T, --seed S, --vocabulary tokenizer.json (prints text).\n"
    "\n"
    "mhla_run_released --check DIR...             compares outputs, intermediate values and\n"
    "                                             gradients with the files of each folder\n";

/// Whether all agreed.
bool check_folder(const std::filesystem::path& folder, const RunContext& run) {
  std::printf("%s\n", folder.c_str());
  const Config config(folder / "config.json");
  for (const ReleasedModel* model : all_models) {
    if (!config.names_one_of(model->classes)) continue;
    Comparison in_float("float"), in_double("double");
    model->check(folder, run, in_float, in_double);
    const int failed = in_float.failed() + in_double.failed();
    std::printf("%d tensors compared, %d failed\n", in_float.compared() + in_double.compared(),
                failed);
    return failed == 0;
  }
  throw UnreadableFile(folder / "config.json", "names the model " + config.word("model"));
}

Arguments parse(int argc, char** argv, int& threads) {
  constexpr Index most = Index{1} << 31;
  Arguments arguments;
  arguments.checkpoint = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      arguments.inputs.push_back(word);
      continue;
    }
    if (word == "--bfloat16") {
      arguments.in_bfloat16 = true;
      continue;
    }
    if (++i == argc) throw UsageError(word + " needs a value");
    const std::string value = argv[i];
    if (word == "--config") {
      arguments.config = value;
    } else if (word == "--prefix") {
      arguments.prefix = value;
    } else if (word == "--output") {
      arguments.output = value;
    } else if (word == "--vocabulary") {
      arguments.vocabulary = value;
    } else if (word == "--timestep") {
      arguments.timesteps = numbers(value, "a time step", -1e6, 1e6);
    } else if (word == "--label") {
      arguments.labels = numbers(value, "a label", Index{0}, most);
    } else if (word == "--tokens") {
      arguments.tokens = number(value, "a number of tokens", Index{0}, most);
    } else if (word == "--temperature") {
      arguments.temperature = number(value, "a temperature", 0.0, 1e6);
    } else if (word == "--seed") {
      arguments.seed = number(value, "a seed", std::uint64_t{0}, ~std::uint64_t{0});
    } else if (word == "--threads") {
      threads = number(value, "a number of threads", 1, 1024);
    } else {
      throw UsageError(word + " is unknown");
    }
  }
  return arguments;
}

int run(int argc, char** argv) {
  if (argc >= 3 && std::strcmp(argv[1], "--check") == 0) {
    const mhla::ForkJoin team;
    bool agree = true;
    for (int i = 2; i < argc; ++i) agree = check_folder(argv[i], {team}) && agree;
    return agree ? 0 : 1;
  }
  if (argc < 3) {
    std::fputs(usage, argc == 2 && std::strcmp(argv[1], "--help") == 0 ? stdout : stderr);
    return argc == 2 && std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  for (const ReleasedModel* model : all_models)
    if (std::strcmp(argv[1], model->name) == 0) {
      int threads = mhla::ForkJoin::hardware_threads();
      const Arguments arguments = parse(argc, argv, threads);
      const mhla::ForkJoin team(threads);
      model->run(arguments, {team, arguments.in_bfloat16 ? layers::Storage::bfloat16
                                                         : layers::Storage::as_computed});
      return 0;
    }
  throw UsageError(std::string(argv[1]) + " is no model; deit, dit, wan or lm are");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const UsageError& problem) {
    std::fprintf(stderr, "mhla_run_released: %s\n\n%s", problem.what(), usage);
    return 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "mhla_run_released: %s\n", problem.what());
    return 2;
  }
}
