// SPDX-License-Identifier: MIT
/// \defgroup distributed Several processes
/// A sequence too long for one machine, shared out over ranks that each have some whole blocks of
/// it. The engine that moves bytes is the caller's: MPI (`<mhla/mpi.hpp>`), NCCL
/// (`<mhla/nccl.hpp>`), or any type that is a Communicator.
#pragma once

#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/head_parallel.hpp>
#include <mhla/distributed/propose_split.hpp>
#include <mhla/distributed/sequence_parallel.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/distributed/traffic.hpp>
