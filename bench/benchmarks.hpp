// SPDX-License-Identifier: MIT
// What each source of this program registers; attention.cpp says in which order.
#pragma once

#include <mhla/core/index.hpp>
#include <string>
#include <vector>

#include "measurement.hpp"
#include "shapes.hpp"
#include "tensors.hpp"

namespace bench {

/// ceilings.cpp: ceiling/{fma/{float,double,bfloat16},memory_read,memory_copy}/THREADS.
void add_ceilings(const std::vector<NamedExecutor>& thread_counts);

/// passes.cpp:
/// {forward,backward,both,backward_saved,both_saved}/SHAPE/SCALAR/EXECUTOR[/WORKING_SET].
template <class T>
void add_passes(const Shape& shape, const std::string& scalar, const NamedExecutor& executor,
                WorkingSet set);

/// pieces.cpp: pieces_{forward,backward}/SHAPE/float/EXECUTOR, what the passes' time goes into.
void add_pieces(const Shape& shape, const NamedExecutor& executor);

/// products.cpp: product/{cube,summary,readout}_ROWSxCOLSxDEPTH/{float,bfloat16}/EXECUTOR, in turns
/// with libxsmm.
void add_products(const NamedExecutor& executor);

/// peers.cpp: peers_{forward,backward}/SHAPE/float/EXECUTOR, the library and its peers in turns.
void add_peers(const Shape& shape, const NamedExecutor& executor);

/// threads.cpp: {forward,backward,both}/SHAPE/float/EXECUTOR[/WORKING_SET] in turns with one
/// thread.
void add_speedup(const Shape& shape, const NamedExecutor& executor, WorkingSet set);

/// storage.cpp: {forward,backward,both,backward_saved,both_saved}/SHAPE/SCALAR/EXECUTOR of 16-bit
/// tensors in turns with float; several threads without the saved ones.
void add_storage(const Shape& shape, const NamedExecutor& executor);

/// layouts.cpp: column_major_{forward,backward}/SHAPE/SCALAR/EXECUTOR, packed q, k and v stored by
/// columns in turns with rows.
void add_layouts(const NamedExecutor& executor);

/// sequences.cpp: decode/SHAPE/SCALAR/EXECUTOR and scaling/NLP_M32/float/EXECUTOR.
void add_decoding(const Shape& shape, const NamedExecutor& executor);
void add_lengths(const NamedExecutor& executor);

}  // namespace bench
