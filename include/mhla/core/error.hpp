// SPDX-License-Identifier: MIT
// The errors the library throws. Everything it can throw derives from mhla::Error; a function
// that throws has changed nothing.
#pragma once

#include <mhla/core/config.hpp>
#include <stdexcept>
#include <string>

MHLA_NAMESPACE_BEGIN

/// Base of every exception the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An extent, a stride or a combination of run-time values is not what the call needs. The message
/// names the argument, the axis, what was expected, what was given, and the rule.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// The caller's workspace is too small or not aligned to `workspace_alignment`.
class WorkspaceError : public Error {
 public:
  using Error::Error;
};

/// A saved state does not belong to the call it is given to.
class StateError : public Error {
 public:
  using Error::Error;
};

/// A CUDA or cuBLAS call failed, or CUDA does not know the memory of an argument; the message holds
/// the call and the status' name, or the argument.
class CudaError : public Error {
 public:
  using Error::Error;
};

MHLA_NAMESPACE_END
