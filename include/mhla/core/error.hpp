// SPDX-License-Identifier: MIT
// The errors the library throws. All derive from mhla::Error; a function that throws has changed
// nothing.
#pragma once

#include <concepts>
#include <cstdio>
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
  MessagePart(const char* text) : kind_(Kind::text), text_(text) {}  // NOLINT: a piece of a message
  MessagePart(const std::string& text) : MessagePart(text.c_str()) {}  // NOLINT
  template <std::integral Number>
  MessagePart(Number number)  // NOLINT
      : kind_(Kind::number), number_(static_cast<long long>(number)) {}
  MessagePart(double number) : kind_(Kind::real), real_(number) {}  // NOLINT

  MHLA_ONCE_A_CALL void append_to(std::string& message) const {
    char number[32];
    if (kind_ == Kind::number) std::snprintf(number, sizeof(number), "%lld", number_);
    if (kind_ == Kind::real) std::snprintf(number, sizeof(number), "%.9g", real_);
    message += kind_ == Kind::text ? text_ : number;
  }

 private:
  enum class Kind { text, number, real } kind_;
  union {
    const char* text_;
    long long number_;
    double real_;
  };
};

// A message of text and numbers.
MHLA_ONCE_A_CALL inline std::string joined(std::initializer_list<MessagePart> parts) {
  std::string message;
  for (const MessagePart& part : parts) part.append_to(message);
  return message;
}
/// \endcond

/// Base of every exception the library throws.
class MHLA_EXCEPTION Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// The message, joined from text and numbers: `Error({"axis ", name, " is ", extent})`.
  MHLA_ONCE_A_CALL Error(std::initializer_list<MessagePart> parts) : runtime_error(joined(parts)) {}
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
