// SPDX-License-Identifier: MIT
// The errors the library throws. All derive from mhla::Error; a function that throws has changed
// nothing.
#pragma once

#include <concepts>
#include <cstdio>
#include <initializer_list>
#include <mhla/core/config.hpp>
#include <stdexcept>
#include <string>

MHLA_NAMESPACE_BEGIN

/// \addtogroup errors
/// \{

/// \cond INTERNAL
// A piece of a message: text that outlives the expression, or a number.
class MessagePart {
 public:
  MessagePart(const char* text) : text_(text) {}                 // NOLINT: a piece of a message
  MessagePart(const std::string& text) : text_(text.c_str()) {}  // NOLINT
  template <std::integral Number>
  MessagePart(Number number) : number_(static_cast<long long>(number)) {}  // NOLINT
  MessagePart(double number) : real_(number), is_real_(true) {}            // NOLINT

  void append_to(std::string& message) const {
    char real[32];
    std::snprintf(real, sizeof(real), "%.9g", real_);
    message += text_ != nullptr ? text_ : is_real_ ? real : std::to_string(number_);
  }

 private:
  const char* text_ = nullptr;
  long long number_ = 0;
  double real_ = 0;
  bool is_real_ = false;
};
/// \endcond

/// Base of every exception the library throws.
class MHLA_EXCEPTION Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// The message, joined from text and numbers: `Error("axis ", name, " is ", extent)`.
  template <class... Parts>
  Error(MessagePart first, MessagePart second, const Parts&... more)
      : runtime_error(joined({first, second, MessagePart(more)...})) {}

 private:
  MHLA_OUT_OF_LINE static std::string joined(std::initializer_list<MessagePart> parts) {
    std::string message;
    for (const MessagePart& part : parts) part.append_to(message);
    return message;
  }
};

/// An extent, a stride or a combination of run-time values is not what the call needs. The message
/// names the argument, the axis, what was given, what was expected, and the rule.
class MHLA_EXCEPTION ShapeError : public Error {
 public:
  using Error::Error;
};

/// The caller's workspace is too small or not aligned to `workspace_alignment`.
class MHLA_EXCEPTION WorkspaceError : public Error {
 public:
  using Error::Error;
};

/// A saved state does not belong to the call it is given to, or a decoder has no room.
class MHLA_EXCEPTION StateError : public Error {
 public:
  using Error::Error;
};

/// A CUDA or cuBLAS call failed, or CUDA does not know the memory of an argument. The message names
/// the call and its status, or the argument.
class MHLA_EXCEPTION CudaError : public Error {
 public:
  using Error::Error;
};

/// \}

MHLA_NAMESPACE_END
