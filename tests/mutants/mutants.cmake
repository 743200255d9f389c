# SPDX-License-Identifier: MIT
# The planted faults: name, the killer that must notice (<killer>_killer.cpp), the header, the text to
# find there exactly once, and what takes its place.

# Mixing
mutant(mix_transposed cpu cpu/plan.hpp
  [[= mix(h, i, b);]]
  [[= mix(h, b, i);]])
mutant(mix_adjoint_not_transposed cpu cpu/block_mixing.hpp
  [[copy_row(strip.row(i), mixing.row(i) + first + weights.begin(s), strip.cols);]]
  [[for (Index r = 0; r < strip.cols; ++r)
        strip.row(i)[r] =
            mixing.row((first + weights.begin(s) + r) % mixing.rows)[i % mixing.cols];]])
mutant(mix_adjoint_of_first_group_only cpu cpu/block_mixing.hpp
  [[mixing.row(i) + first + weights.begin(s), strip.cols]]
  [[mixing.row(i) + weights.begin(s), strip.cols]])
mutant(dmix_without_summaries cpu cpu/backward_unit.hpp
  [[add(grad.summaries, unit.summaries.summaries, matrix);]]
  [[]])
mutant(dmix_without_key_sums cpu cpu/backward_unit.hpp
  [[if constexpr (mixes_key_sums<L>) add(grad.key_sums, unit.summaries.key_sums, matrix);]]
  [[]])
mutant(dmix_replaced_not_added cpu cpu/block_mixing.hpp
  [[multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::add);]]
  [[multiply_right_transposed(grad_mixing, grad_mixed, summaries);]])
mutant(dmix_of_first_sequences_only cpu cpu/partial_sums.hpp
  [[for (Index step = 1; step < count; step *= 2)]]
  [[for (Index step = 1; step < 1; step *= 2)]])
mutant(dmix_of_another_head cpu cpu/partial_sums.hpp
  [[h / e.group_size * partials.size + h % e.group_size * matrix_size]]
  [[h % e.group_size * partials.size + h / e.group_size * matrix_size]])
mutant(dmix_not_accumulated cpu cpu/partial_sums.hpp
  [[update == Update::overwrite ? sum : to + sum]]
  [[sum]])
mutant(dmix_stale_outside_the_corner cpu cpu/partial_sums.hpp
  [[destination(h, i, b) = A(0);]]
  [[static_cast<void>(destination(h, i, b));]])
mutant(mix_of_first_head_for_all cpu cpu/plan.hpp
  [[problem.shape.mix_heads == 1 ? 0 : head]]
  [[problem.shape.mix_heads == 1 ? 0 : 0 * head]])

# Summaries
mutant(key_sum_not_accumulated cpu cpu/block_summary.hpp
  [[weighted_row_sum(key_sum, features, {}, into);]]
  [[weighted_row_sum(key_sum, features, {}, Into::overwrite);]])
mutant(summary_of_last_tile_only cpu cpu/block_summary.hpp
  [[multiply_left_transposed_rows(summary, rotated.rows, rotated.placed(), values, into, prefetch);]]
  [[multiply_left_transposed_rows(summary, rotated.rows, rotated.placed(), values, Into::overwrite, prefetch);]])
mutant(summary_of_unrotated_keys cpu cpu/block_summary.hpp
  [[multiply_left_transposed_rows(summary, rotated.rows, rotated.placed(), values, into, prefetch);]]
  [[multiply_left_transposed_rows(summary, rotated.rows, features.placed(), values, into, prefetch);]])
mutant(transposed_summary_of_last_tile_only cpu cpu/block_summary.hpp
  [[multiply_left_transposed_rows(summary, rotated.rows, values, rotated.placed(), into, prefetch);]]
  [[multiply_left_transposed_rows(summary, rotated.rows, values, rotated.placed(), Into::overwrite, prefetch);]])
mutant(summary_of_unrotated_keys_in_backward cpu cpu/block_summary.hpp
  [[multiply_left_transposed_rows(summary, rotated.rows, values, rotated.placed(), into, prefetch);]]
  [[multiply_left_transposed_rows(summary, rotated.rows, values, features.placed(), into, prefetch);]])
mutant(saved_summaries_not_transposed cpu cpu/pipeline.hpp
  [[transpose(unit.summaries.summary(b),
              panel(saved + b * e.summary_stride(), e.feature_dim, e.value_dim));]]
  [[copy_row(unit.summaries.summary(b).data, saved + b * e.summary_stride(), e.summary_size());]])
mutant(dv_always_in_one_step cpu cpu/backward_unit.hpp
  [[request.update == Update::overwrite;]]
  [[request.update != Update{7};]])
mutant(dv_of_the_transposed_gradient cpu cpu/backward_unit.hpp
  [[transpose<A>(grad_summary, grad.summary(b));]]
  [[copy_row(grad_summary.data, grad.summary(b).data, e.summary_size());]])
mutant(dv_of_unrotated_keys cpu cpu/backward_unit.hpp
  [[summarize_value_gradient<A>(k.features.rotated,]]
  [[summarize_value_gradient<A>(k.features.features,]])
mutant(dk_without_normalizer cpu cpu/backward_unit.hpp
  [[if (normalizes<L>) grad_keys.unrotated = every_row(grad_key_sum);]]
  [[]])
mutant(dz_not_mixed cpu cpu/backward_unit.hpp
  [[if (request.gradients.key.wanted) mix_columns(grad_mixed.key_sums, grad.key_sums);]]
  [[if (request.gradients.key.wanted) scale_rows(grad.key_sums, A(0));]])

# Readout
mutant(epsilon_dropped cpu cpu/readout.hpp
  [[denominators[t] += epsilon;]]
  [[denominators[t] += A(0);]])
mutant(zero_denominator_divides cpu cpu/readout.hpp
  [[if (den == A(0)) {]]
  [[if (den != den) {]])
mutant(zero_denominator_has_a_gradient cpu cpu/readout.hpp
  [[denominators[t] == A(0) ? A(0) : -gradient[t] / denominators[t];]]
  [[-gradient[t] / denominators[t];]])
mutant(denominator_gradient_sign cpu cpu/readout.hpp
  [[A(0) : -gradient[t] / denominators[t];]]
  [[A(0) : gradient[t] / denominators[t];]])
mutant(dq_without_normalizer cpu cpu/backward_unit.hpp
  [[total.unrotated = every_row(mixed.key_sum(i));]]
  [[]])
mutant(dq_of_unweighted_key_sums cpu cpu/backward_unit.hpp
  [[total.weights = c;]]
  [[]])
mutant(denominators_inverted_unguarded cpu cpu/kernels/rows.inc
  [[return improper == 0;]]
  [[return improper == improper;]])
mutant(y_of_improper_inverses cpu cpu/forward_unit.hpp
  [[const bool invertible = invert<A>(denominators, inverses);]]
  [[const bool invertible = invert<A>(denominators, inverses) || true;]])
mutant(dy_not_divided cpu cpu/backward_unit.hpp
  [[divide_rows<A>(u, denominators);]]
  [[]])
mutant(dz_of_last_tile_only cpu cpu/readout.hpp
  [[weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, into);]]
  [[weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, Into::overwrite);]])
mutant(ds_of_unrotated_queries cpu cpu/backward_unit.hpp
  [[read_out_summary_gradient<A>(q.rotated, u, grad.summary(i), into, &next);]]
  [[read_out_summary_gradient<A>(q.features, u, grad.summary(i), into, &next);]])
mutant(query_head_of_another_group cpu cpu/forward_unit.hpp
  [[const Index head = unit.kv_head * plan.extents.group_size + g;]]
  [[const Index head = unit.kv_head + g * plan.problem.shape.kv_heads;]])
mutant(head_that_does_not_go_round_dropped cpu cpu/pipeline.hpp
  [[const Index whole = units - shared;]]
  [[const Index whole = units - shared;
  if (plan.whole_units) units = whole;]])
mutant(first_shared_head_dropped cpu cpu/pipeline.hpp
  [[for (Index unit = whole; unit < units; ++unit)]]
  [[for (Index unit = whole + 1; unit < units; ++unit)]])
mutant(value_columns_of_another_part cpu cpu/pipeline.hpp
  [[part.v = value_columns(operands.v, first_column, columns);]]
  [[part.v = value_columns(operands.v, 0, columns);]])
mutant(value_columns_of_one_part_written cpu cpu/pipeline.hpp
  [[read_out_unit(part, unit, value_columns(y, first_column, columns), loop);]]
  [[read_out_unit(part, unit, value_columns(y, 0, columns), loop);]])
mutant(value_columns_kept_in_one_place cpu cpu/pipeline.hpp
  [[whole.summary(b).col_range(first_column, from.cols)]]
  [[whole.summary(b).col_range(0, from.cols)]])
mutant(value_columns_lose_key_sums cpu cpu/pipeline.hpp
  [[copy_row(whole.key_sum(b).data, part.key_sum(b).data, part.key_sum(b).size);]]
  [[]])
mutant(saved_state_of_another_head cpu cpu/pipeline.hpp
  [[(s * kv_heads + kv_head) * saved_size]]
  [[(s + kv_head) * saved_size]])

# The MixedProduct normalizer
mutant(product_with_first_key_sum cpu cpu/forward_unit.hpp
  [[own_key_sum_products<A>(q.features, unit.summaries.key_sum(b),]]
  [[own_key_sum_products<A>(q.features, unit.summaries.key_sum(0),]])
mutant(product_of_first_tile_only cpu cpu/forward_unit.hpp
  [[* e.block_tokens + tile.offset, tile.tokens}]]
  [[* e.block_tokens, tile.tokens}]])
mutant(product_dr_not_transposed cpu cpu/mixed_product.hpp
  [[multiply_left_transposed(grad_products, mixing, grad_denominators);]]
  [[multiply(grad_products, mixing, grad_denominators);]])
mutant(product_dmix_dropped cpu cpu/mixed_product.hpp
  [[multiply_right_transposed(grad_mixing, grad_denominators, products, Into::add);]]
  [[]])
mutant(product_dz_of_last_head_only cpu cpu/mixed_product.hpp
  [[weighted_row_sum(grad_key_sum, features, grad_products, into);]]
  [[weighted_row_sum(grad_key_sum, features, grad_products, Into::overwrite);]])

# Tokens, tiles and products
mutant(stride_ignored_on_reading cpu cpu/token_block.hpp
  [[load(tokens.row(places[r])[c * tokens.stride])]]
  [[load(tokens.row(places[r])[c])]])
mutant(stride_ignored_on_writing cpu cpu/token_block.hpp
  [[store(to[c * stride], update == Update::accumulate ? before + value : value);]]
  [[store(to[c], update == Update::accumulate ? before + value : value);]])
mutant(dv_not_accumulated cpu cpu/token_block.hpp
  [[store(to[c * stride], update == Update::accumulate ? before + value : value);]]
  [[store(to[c * stride], value);]])
mutant(dv_not_accumulated_where_it_lies cpu cpu/kernels/rows.inc
  [[store(y + c, load(y + c) + load(x + c) * weight);]]
  [[store(y + c, load(x + c) * weight);]])
mutant(scattered_rows_not_scaled causal cpu/token_block.hpp
  [[if (weights.size > 0) weighted_rows<A, A>(packed, weights, packed.placed());]]
  [[]])
mutant(rows_scaled_twice_where_they_lie kernels cpu/kernels/rows.inc
  [[return count >= lanes && from != to;]]
  [[return count >= lanes;]])
mutant(vector_at_the_end_of_a_row_mapped_from_its_start kernels cpu/kernels/rows.inc
  [[store(y + at, scale * each(value, load(x + at)));]]
  [[store(y + at, scale * each(value, load(x + c)));]])
mutant(long_row_accumulated_from_its_start kernels cpu/kernels/rows.inc
  [[unmap_row(f, scale, count, from[r] + first,]]
  [[unmap_row(f, scale, count, from[r],]])
mutant(scale_missing_in_backward kernels cpu/kernels/rows.inc
  [[store(y + at, scale * each(derivative, load(x + at)) * gradient);]]
  [[store(y + at, each(derivative, load(x + at)) * gradient);]])
mutant(key_sum_weights_lost_in_the_adjoint kernels cpu/kernels/rows.inc
  [[load(g + at) + weight * load(h + at);]]
  [[load(g + at) + load(h + at);]])
mutant(weights_of_rows_left_out kernels cpu/kernels/rows.inc
  [[if (weights == nullptr) {]]
  [[if (true) {]])
mutant(nan_of_bfloat16_vectors_carried kernels cpu/kernels/sixteen_bits.inc
  [[v == v ? ((bits >> 16) & 1u) + 0x7fffu : Bits{};]]
  [[((bits >> 16) & 1u) + 0x7fffu;]])
mutant(bfloat16_vectors_cut_off kernels cpu/kernels/sixteen_bits.inc
  [[narrowed((bits + up) >> 16)]]
  [[narrowed((bits + (up & 0u)) >> 16)]])
mutant(rotation_not_turned_back cpu cpu/kernels/rows.inc
  [[const T sign = back ? T(-1) : T(1);
    Index c = 0;
    for (]]
  [[const T sign = back ? T(1) : T(1);
    Index c = 0;
    for (]])
mutant(neighbours_not_turned_back kernels cpu/kernels/rows.inc
  [[swap_neighbours(v) * (load(sine + c) * sign)]]
  [[swap_neighbours(v) * load(sine + c)]])
mutant(last_neighbours_not_turned_back cpu cpu/kernels/rows.inc
  [[const T s = back ? -sine[c + 1] : sine[c + 1];]]
  [[const T s = sine[c + 1];]])
mutant(angles_of_the_first_stretch kernels cpu/rotation_table.hpp
  [[if (i == 0)
]]
  [[if (position == 0)
]])
mutant(angle_beyond_a_stretch_of_its_end kernels cpu/rotation_table.hpp
  [[const Points& offset = offset_[i];]]
  [[const Points& offset = offset_[i > 0 ? i - 1 : 0];]])
mutant(last_angle_of_a_line_missing cpu cpu/rotation_table.hpp
  [[std::min(axis.count, first + line)]]
  [[std::min(axis.count, first + line - width)]])
mutant(rotation_angle_in_float cpu cpu/rotation_table.hpp
  [[const double angle = static_cast<double>(position) * frequency_[c];]]
  [[const double angle = static_cast<float>(static_cast<double>(position) * frequency_[c]);]])
mutant(run_crosses_the_edge_of_a_block cpu policy/block_geometry.hpp
  [[return left < block[axis] ? left : block[axis];]]
  [[return left < block[axis] ? left : block[axis] + (left > block[axis]);]])
mutant(long_product_overwrites_its_sum cpu cpu/kernels/products.inc
  [[p.add || first > 0,]]
  [[p.add,]])
mutant(long_transposed_product_overwrites_its_sum kernels cpu/kernels/cuts.inc
  [[part.add = p.add || first > 0;]]
  [[part.add = p.add;]])
mutant(transposed_product_of_the_first_terms kernels cpu/kernels/cuts.inc
  [[p.b.data + col * p.b.stride + first, p.b.stride, packed]]
  [[p.b.data + col * p.b.stride, p.b.stride, packed]])
mutant(product_without_its_last_columns cpu cpu/kernels/products.inc
  [[if (col + lanes > p.cols) {
          part_of_a_vector]]
  [[if (col + lanes > p.cols) {
          if (col > 0) break;
          part_of_a_vector]])
mutant(product_of_long_rows_without_their_ends cpu cpu/kernels/transposed_products.inc
  [=[for (Index l = k; l < depth; ++l) total[j]]=]
  [=[for (Index l = depth; l < depth; ++l) total[j]]=])
mutant(product_of_long_rows_added cpu cpu/kernels.inc
  [[if (!p.add)
    for (Index i = 0; i < p.rows; ++i)
      for (Index j = 0; j < p.cols; ++j) p.c[i][j] = T(0);]]
  [[if (p.add)
      for (Index i = 0; i < p.rows; ++i)
        for (Index j = 0; j < p.cols; ++j) p.c[i][j] = T(0);]])
mutant(places_of_factors_ignored kernels cpu/kernels/products.inc
  [[columns = b.data + b.places[k] * b.stride;]]
  [[columns = b.data + k * b.stride;]])
mutant(places_of_terms_ignored kernels cpu/kernels/products.inc
  [[(Order == Factors::in_rows ? k : a.places[k] * depth_stride);]]
  [[(Order == Factors::in_rows ? k : k * depth_stride);]])
mutant(small_tiles_of_one_order kernels cpu/kernels/products.inc
  [[Order == Factors::either ? strip.a_transposed : ]]
  [[Order == Factors::either ? false : ]])
mutant(places_of_results_ignored kernels cpu/kernels/products.inc
  [[T* const to = c + places[i] * c_stride;]]
  [[T* const to = c + (row + i) * c_stride;]])
mutant(products_of_the_last_rows_of_b_out_of_step kernels cpu/kernels.inc
  [[p.a[row] + first, p.a.stride, p.c[row] + j, 0, p.c.stride);]]
  [[p.a[row] + first, p.a.stride, p.c[row] + j, 0, 1);]])
mutant(places_of_rows_ignored kernels cpu/kernels.hpp
  [[data + (places != nullptr ? places[r] : r) * stride]]
  [[data + r * stride]])
mutant(scale_dropped_of_long_products kernels cpu/kernels/products.inc
  [[first + count == p.depth ? p.scale : nullptr]]
  [[first + count == p.depth && first == 0 ? p.scale : nullptr]])
mutant(scale_with_every_piece kernels cpu/kernels/products.inc
  [[first + count == p.depth ? p.scale : nullptr]]
  [[p.scale]])
mutant(scale_of_the_first_rows kernels cpu/kernels/products.inc
  [[part.scale = strip.scale != nullptr ? strip.scale + row : nullptr;]]
  [[part.scale = strip.scale;]])
mutant(copy_of_one_row_only kernels cpu/kernels/products.inc
  [[__builtin_memcpy(packed + k * tile_cols, strip.b[k],]]
  [[__builtin_memcpy(packed + k * tile_cols, strip.b[0],]])
mutant(part_of_a_vector_not_added kernels cpu/kernels/products.inc
  [[for (Index i = 0; i < count; ++i) copy_part(cols, strip.c[row + i], vectors + i * lanes);]]
  [[for (Index i = 0; i < count; ++i) copy_part(0, strip.c[row + i], vectors + i * lanes);]])
mutant(column_sums_not_added kernels cpu/kernels/rows.inc
  [[T total = add ? sum[c] : T(0);]]
  [[T total = T(0);]])
mutant(past_triangle_with_a_term_more kernels cpu/kernels/mixtures.inc
  [[b + k * m.b_stride, k + 1, Height);]]
  [[b + k * m.b_stride, k, Height);]])
mutant(future_triangle_with_a_term_more kernels cpu/kernels/mixtures.inc
  [[b + k * m.b_stride, 0, k + 1);]]
  [[b + k * m.b_stride, 0, k + 2);]])
mutant(past_of_the_last_columns kernels cpu/kernels.inc
  [[++rest.depth;]]
  [[rest.depth += 0;]])
mutant(strips_with_the_first_ones_weights kernels cpu/kernels/cuts.inc
  [[m.a + row * all_terms + first * rows]]
  [[m.a + first * rows]])
mutant(strips_of_the_last_terms_alone kernels cpu/kernels/cuts.inc
  [[m.add || first > 0}]]
  [[m.add}]])
mutant(strips_of_the_past_that_begin_anew kernels cpu/kernels/cuts.inc
  [[part(strip, col, tile_cols, m.depth + more, 0);]]
  [[part(strip, col, tile_cols, m.depth, 0);]])
mutant(strips_of_one_tile_of_rows kernels cpu/kernels/mixtures.inc
  [[for (Index row = 0; row < m.rows;) row += mix_some_rows(m, row, cols);]]
  [[mix_some_rows(m, 0, cols);]])
mutant(triangle_without_its_diagonal causal cpu/gemm.hpp
  [[result.rows - t), result.cols, t + 1,]]
  [[result.rows - t), result.cols, t,]])
mutant(workspace_a_byte_short cpu core/workspace.hpp
  [[if (workspace.size < bytes)]]
  [[if (workspace.size + 1 < bytes)]])

# Half a vector's columns of floats, and transposes of 16 of them, are AVX-512's. A machine without it
# cannot notice.
set(flags "")
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo flags REGEX "avx512dq" LIMIT_COUNT 1)
endif()
if(flags)
  mutant(odd_terms_of_half_a_vector_lost kernels cpu/kernels/products.inc
    [[store_half(strip, row + i, even + odd);]]
    [[store_half(strip, row + i, even);]])
  mutant(odd_rows_of_half_a_vector_lost kernels cpu/kernels/products.inc
    [[store_half(strip, row + 2 * i + 1, odd);]]
    [[store_half(strip, row + 2 * i + 1, even);]])
  mutant(half_a_vector_not_added kernels cpu/kernels/products.inc
    [[if (strip.add) v += load_half(to);]]
    [[]])
  mutant(half_a_vector_not_scaled kernels cpu/kernels/products.inc
    [[if (strip.scale != nullptr) v *= strip.scale[row];]]
    [[]])
  mutant(half_a_vector_of_odd_depth kernels cpu/kernels/products.inc
    [[(p.a_transposed ? p.rows : count) % 2 == 0]]
    [[(p.a_transposed ? p.rows : 2 * count) % 2 == 0]])
else()
  message(STATUS "Not planted, for want of AVX-512: five faults.")
endif()

# Policies
mutant(axes_swapped policy policy/block_geometry.hpp
  [[return token / extent[2] % extent[1];]]
  [[return token / extent[1] % extent[2];]])
mutant(last_ragged_block_lost policy policy/block_geometry.hpp
  [[return ceil_div(extent[axis], block[axis]);]]
  [[return extent[axis] / block[axis];]])
mutant(relu_swallows_nan policy policy/feature_map.hpp
  [[return (x < T(0) ? T(0) : x) + T(epsilon);]]
  [[return (x > T(0) ? x : T(0)) + T(epsilon);]])
mutant(softmax_vjp_without_its_mean policy policy/feature_map.hpp
  [[out[c] *= grad[c] - inner;]]
  [[out[c] *= grad[c];]])
mutant(dpfp_of_the_released_code policy policy/feature_map.hpp
  [[const T x = c < in.size ? in[c] : -in[c - in.size];]]
  [[const T x = c < in.size ? in[c] : in[c - in.size];]])
mutant(favor_norm_not_halved policy policy/feature_map.hpp
  [[return sum / U(2);]]
  [[return sum;]])
mutant(favor_vjp_without_the_norm policy policy/feature_map.hpp
  [[scale * (out[c] - scale * in[c] * sum)]]
  [=[scale * out[c]]=])
mutant(tokens_first_keeps_the_strides policy core/tensor_view.hpp
  [[{view.stride[0], view.stride[2], view.stride[1], view.stride[3]}]]
  [[{view.stride[0], view.stride[1], view.stride[2], view.stride[3]}]])
mutant(initial_mix_rows_for_columns mixing_matrix mixing_matrix.hpp
  [[? NormAxis::none : NormAxis::column;]]
  [[? NormAxis::none : NormAxis::row;]])
mutant(initial_mix_one_largest_distance mixing_matrix mixing_matrix.hpp
  [[options.max_mode == MaxMode::global ?]]
  [[options.max_mode != MaxMode{7} ?]])
mutant(projection_to_zero mixing_matrix mixing_matrix.hpp
  [[entry = low;]]
  [[entry = 0;]])
mutant(projection_loses_the_diagonal mixing_matrix mixing_matrix.hpp
  [[onto.lower_triangle && b > i]]
  [[onto.lower_triangle && b >= i]])

# The Eigen layer
mutant(eigen_mix_transposed eigen eigen/tensor_views.hpp
  [[{0, matrix.stride[0], matrix.stride[1]}]]
  [[{0, matrix.stride[1], matrix.stride[0]}]])
mutant(eigen_axes_not_reversed eigen eigen/tensor_views.hpp
  [[const int at = Layout == int(Eigen::RowMajor) ? axis : Rank - 1 - axis;
    view.extent]]
  [[const int at = axis;
    view.extent]])
mutant(aliased_result_handed_over_in_part eigen eigen/forward_evaluator.hpp
  [[sizeof(Scalar) * static_cast<std::size_t>(destination_.size()));]]
  [[sizeof(Scalar));]])
mutant(eigen_alias_overlooked eigen eigen/operand.hpp
  [[share_memory(destination, value.view())]]
  [[share_memory(destination, query.view())]])

# Causal modes
mutant(causal_without_its_triangle causal cpu/intra_block.hpp
  [[multiply_lower(numerators, scores, values, Into::add);]]
  [[multiply(numerators, scores, values, Into::add);]])
mutant(causal_past_with_the_own_block causal cpu/plan.hpp
  [[past_lag = masks_own_block<L> ? 1 : 0;]]
  [[past_lag = 0;]])
mutant(block_causal_past_without_the_own_block causal cpu/plan.hpp
  [[past_lag = masks_own_block<L> ? 1 : 0;]]
  [[past_lag = 1;]])
mutant(causal_own_weight_dropped causal cpu/forward_unit.hpp
  [[own_weight, plan.tables.queries, tile,]]
  [[A(1), plan.tables.queries, tile,]])
mutant(causal_y_in_place_not_divided causal cpu/forward_unit.hpp
  [[denominators.size == 0 ? panel_in_place<A>(table, tile, results) : Panel<A>{};]]
  [[panel_in_place<A>(table, tile, results);]])
mutant(grad_numerators_in_place_not_divided cpu cpu/backward_unit.hpp
  [[if (denominators.size == 0) return readable_panel]]
  [[if (tile.runs == 1) return readable_panel]])
mutant(tiles_of_many_runs_in_place causal cpu/token_block.hpp
  [[if (tile.runs != 1 || !is_in_place]]
  [[if (!is_in_place]])
mutant(tile_in_place_from_the_first_token causal cpu/token_block.hpp
  [[return {rows[0], tile.tokens, tokens.dim, rows.stride};]]
  [[return {rows.data, tile.tokens, tokens.dim, rows.stride};]])
mutant(causal_own_weight_twice_in_key_sums causal cpu/forward_unit.hpp
  [[running_key_sums<A>(own.features, A(1),]]
  [[running_key_sums<A>(own.features, own_weight,]])
mutant(causal_tile_not_taken_up causal cpu/forward_unit.hpp
  [[absorb_own_tile<A>(own.rotated, own.values, unit.orientation, mixed.summary(i));]]
  [[static_cast<void>(own);]])
mutant(causal_tile_not_taken_up_in_backward causal cpu/backward_unit.hpp
  [[absorb_own_tile<A>(own.rotated, own.values, unit.orientation, mixed.summary(i));]]
  [[static_cast<void>(own);]])
mutant(causal_last_but_one_tile_not_taken_up causal cpu/forward_unit.hpp
  [[if (t + 1 < block.first_tile + block.tiles)]]
  [[if (t + 2 < block.first_tile + block.tiles)]])
mutant(causal_last_but_one_tile_not_taken_up_in_backward causal cpu/backward_unit.hpp
  [[if (request.query_features() && t + 1 <]]
  [[if (request.query_features() && t + 2 <]])
mutant(causal_gradients_of_last_tile_for_all causal cpu/backward_unit.hpp
  [[if (last) {  // no later tile]]
  [[if (last || first) {  // no later tile]])
mutant(causal_last_tile_with_old_gradients causal cpu/backward_unit.hpp
  [[if (last) {  // no later tile]]
  [[if (last && first) {  // no later tile]])
mutant(causal_last_tile_added_to_old_gradients causal cpu/backward_unit.hpp
  [[last && g == plan.heads_of(matrix).first ? Into::overwrite : Into::add]]
  [[Into::add]])
mutant(causal_later_heads_overwrite causal cpu/backward_unit.hpp
  [[last && g == plan.heads_of(matrix).first ? Into::overwrite : Into::add]]
  [[last ? Into::overwrite : Into::add]])
mutant(causal_no_tile_left_for_the_first causal cpu/backward_unit.hpp
  [[if (!first)  // an earlier tile]]
  [[if (!first && last)  // an earlier tile]])
mutant(causal_key_sum_a_token_late causal cpu/intra_block.hpp
  [[add_scaled_row(running.data, own_weight, keys.row(t), keys.cols);
    copy_row(sums.row(t), running.data, keys.cols);]]
  [[copy_row(sums.row(t), running.data, keys.cols);
    add_scaled_row(running.data, own_weight, keys.row(t), keys.cols);]])
mutant(causal_tiles_of_keys_first_to_last causal cpu/backward_unit.hpp
  [[for (Index t = block.first_tile + block.tiles - 1; t >= block.first_tile; --t) {]]
  [[for (Index t = block.first_tile; t < block.first_tile + block.tiles; ++t) {]])
mutant(causal_dm_ii_dropped causal cpu/backward_unit.hpp
  [[inner_product<A>(keys.rotated, own_keys) + inner_product<A>(keys.features, own_key_sums);]]
  [[A(0);]])
mutant(causal_dm_ii_without_key_sums causal cpu/backward_unit.hpp
  [[inner_product<A>(keys.rotated, own_keys) + inner_product<A>(keys.features, own_key_sums);]]
  [[inner_product<A>(keys.rotated, own_keys);]])
mutant(causal_dk_without_own_weight causal cpu/backward_unit.hpp
  [[add_scaled(grad_keys.rotated, own_weight, own_keys);]]
  [[add_scaled(grad_keys.rotated, A(1), own_keys);]])
mutant(causal_dv_without_own_block causal cpu/backward_unit.hpp
  [[if (request.gradients.value.wanted) add_scaled(grad_values, own_weight, own_values);]]
  [[]])
mutant(causal_dq_without_own_block causal cpu/intra_block.hpp
  [[multiply_lower(grad_rotated, scores, scaled_keys, Into::add);]]
  [[]])
mutant(causal_dk_sums_from_the_front causal cpu/intra_block.hpp
  [[for (Index t = rows.rows - 1; t >= 0; --t) {]]
  [[for (Index t = 0; t < rows.rows; ++t) {]])
mutant(causal_w_of_the_block_before causal cpu/backward_unit.hpp
  [[std::fill_n(scratch.own.grad_running.data, scratch.own.grad_running.size, A(0));]]
  [[]])
mutant(causal_ds_with_the_own_block causal cpu/block_mixing.hpp
  [[mixing.rows - first - lag, Terms::past};]]
  [[mixing.rows - first, Terms::past};]])
mutant(causal_ds_not_mirrored causal cpu/block_mixing.hpp
  [[mirrored.data = panel.row(from);
    mirrored.stride = -panel.stride;]]
  [[static_cast<void>(from);]])
mutant(causal_weights_of_ds_not_mirrored causal cpu/block_mixing.hpp
  [=[mixing.row(last_row - k)[first + last - weights.begin(s) - r]]=]
  [=[mixing.row(last_row - k)[first + weights.begin(s) + r]]=])
mutant(causal_dmix_without_its_last_column causal cpu/block_mixing.hpp
  [[for (Index b = 0; b <= i - lag - first; ++b)]]
  [[for (Index b = 0; b < i - lag - first; ++b)]])

# Packed and padded batches
mutant(packed_corner_of_the_longest causal cpu/plan.hpp
  [[key_blocks, problem.key_blocks};]]
  [[key_blocks, key_blocks};]])
mutant(packed_sequences_begin_at_0 causal cpu/block_table.hpp
  [[builder.add(grid, packed.begin(s), block_table::EveryToken{})]]
  [[builder.add(grid, 0, block_table::EveryToken{})]])
mutant(mask_not_read causal cpu/block_table.hpp
  [[if (l < end[2] && takes(row + l)) continue;]]
  [[if (l < end[2] && (takes(row + l) || true)) continue;]])
mutant(mask_of_the_first_sequence causal cpu/block_table.hpp
  [[mask.data + item * mask.stride[0],]]
  [[mask.data,]])
mutant(mask_of_the_queries_for_keys causal cpu/block_table.hpp
  [[table(problem.key_grid, padded.masks.key)]]
  [[table(problem.key_grid, {})]])
mutant(masked_output_left_as_it_was causal cpu/pipeline.hpp
  [[cpu::clear_masked(attention.masks.query, y);]]
  [[static_cast<void>(y);]])
mutant(empty_block_keeps_old_sums causal cpu/forward_unit.hpp
  [[if (block.tiles == 0) clear(unit.summaries.summary(b), unit.summaries.key_sum(b));]]
  [[]])

# Decoding
mutant(decode_position_of_the_call causal decoding.hpp
  [[cpu::TokenRun run{done, tile.tokens, {0, 0, position}};]]
  [[cpu::TokenRun run{done, tile.tokens, {0, 0, done}};]])
mutant(decode_summary_a_block_late causal cpu/decode_step.hpp
  [[panel(next, 1, tile.block), summaries);]]
  [[panel(next, 1, tile.block - 1), summaries.row_range(0, tile.block - 1));]])
mutant(decode_key_sum_a_block_late causal cpu/decode_step.hpp
  [[panel(next, 1, block + 1), panel(unit.key_sums.data, block + 1, e.feature_dim));]]
  [[panel(next, 1, block), panel(unit.key_sums.data, block, e.feature_dim));]])
mutant(decode_closing_block_forgotten causal cpu/decode_step.hpp
  [[if (tile.block >= 1) add(]]
  [[if (tile.block >= 99) add(]])
mutant(decode_past_its_capacity causal policy/decoding_requests.hpp
  [[if (position + tokens > capacity)]]
  [[if (position + tokens > capacity + 1)]])
mutant(decode_state_unchecked causal decoding.hpp
  [[if (stored.checksum != checksum(]]
  [[if (false && stored.checksum != checksum(]])
mutant(extend_by_the_first_row causal mixing_matrix.hpp
  [[return known(head, blocks - 1, std::max(Index{0}, blocks - 1 - (i - b)));]]
  [[return known(head, 0, std::max(Index{0}, blocks - 1 - (i - b)));]])

# 16-bit storage
mutant(bfloat16_taken_for_half sixteen_bits eigen/storage.hpp
  [[using type = BFloat16;]]
  [[using type = Half;]])
mutant(store_bfloat16_cut_off sixteen_bits core/scalar.hpp
  [[(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16]]
  [[bits >> 16]])
mutant(store_bfloat16_ties_away_from_zero sixteen_bits core/scalar.hpp
  [[(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16]]
  [[(bits + 0x8000u) >> 16]])
mutant(store_bfloat16_rounds_a_nan sixteen_bits core/scalar.hpp
  [[(nan & is_nan) | (rounded & ~is_nan)]]
  [[rounded]])
mutant(store_half_ties_down sixteen_bits core/scalar.hpp
  [[+ ((bits >> 13) & 1u) -]]
  [[-]])
mutant(store_half_without_subnormals sixteen_bits core/scalar.hpp
  [[finite = (subnormal & is_small) | (normal & ~is_small);]]
  [[finite = normal & ~is_small;]])
mutant(load_half_without_subnormals sixteen_bits core/scalar.hpp
  [[above_half - 0.5f]]
  [[0.0f]])
mutant(load_half_with_finite_nan sixteen_bits core/scalar.hpp
  [[(112 << 23) + more;]]
  [[(112 << 23);]])

# A fork-join team and its device
mutant(fork_join_error_lost fork_join fork_join.hpp
  [[if (call.error) std::rethrow_exception(call.error);]]
  [[]])
mutant(fork_join_task_drawn_twice fork_join fork_join.hpp
  [[for (Index drawn = next++; drawn < tasks; drawn = next++) task(drawn, slot);]]
  [[for (Index drawn = next; drawn < tasks; drawn = ++next) task(drawn, slot);]])
mutant(fork_join_last_task_never_drawn fork_join fork_join.hpp
  [[for (Index drawn = next++; drawn < tasks; drawn = next++) task(drawn, slot);]]
  [[for (Index drawn = next++; drawn + 1 < tasks; drawn = next++) task(drawn, slot);]])
mutant(fork_join_nested_on_the_first_slot fork_join fork_join.hpp
  [[for (Index i = 0; i < tasks; ++i) task(i, own);]]
  [[for (Index i = 0; i < tasks; ++i) task(i, Index{0});]])
mutant(fork_join_slot_of_two_threads fork_join fork_join.hpp
  [[[this, slot] { work(slot); }]]
  [[[this] { work(1); }]])
mutant(fork_join_returns_too_early fork_join fork_join.hpp
  [[wait_until([&] { return (inside = inside_) == 0; }, [&] { inside_.wait(inside); });]]
  [[static_cast<void>(inside);]])
mutant(fork_join_wakes_one_too_few fork_join fork_join.hpp
  [[for (Index i = 1; i < tasks; ++i) epoch_.notify_one();]]
  [[for (Index i = 2; i < tasks; ++i) epoch_.notify_one();]])
mutant(device_without_its_team fork_join eigen/fork_join_device.hpp
  [[return device.team();]]
  [[static_cast<void>(device);
  static constexpr SerialExecutor serial;
  return serial;]])
mutant(device_without_the_last_elements fork_join eigen/fork_join_device.hpp
  [[for (; i < size; ++i) evaluator.evalScalar(i);]]
  [[]])
mutant(device_past_the_last_elements fork_join eigen/fork_join_device.hpp
  [[i + width <= size]]
  [[i < size]])

# Expressions on a CudaDevice
mutant(cuda_workspace_of_the_device_first cuda_device eigen/cuda_executor.hpp
  [[op.workspace().value_or(device.workspace())]]
  [[device.workspace().data != nullptr ? device.workspace() : *op.workspace()]])
mutant(cuda_gradients_always_overwritten cuda_device eigen/cuda_executor.hpp
  [[target_view(op_.grad_output()), gradients, update, workspace,]]
  [[target_view(op_.grad_output()), gradients, Update::overwrite, workspace,]])
mutant(cuda_explain_counts_the_own_block cuda_device cuda/kernel_cost.hpp
  [[n * (n - 1) / 2]]
  [[n * (n + 1) / 2]])

# Which path a CUDA call takes
mutant(cuda_path_state_on_any_path cuda_path cuda/path.hpp
  [[if (state == StateUse::given && !keeps_states(path)) return Refusal::state;]]
  [[static_cast<void>(state);]])
mutant(cuda_state_of_another_path cuda_state cuda/forward_state.hpp
  [[if (format != format_)]]
  [[if (format != format)]])
mutant(cuda_state_not_aligned_to_chunks cuda_state cuda/forward_state.hpp
  [[format == SummaryFormat::accumulators ? alignof(A) : 16]]
  [[alignof(A)]])
mutant(fused_state_of_the_first_item cuda_state cuda/fused/plan.hpp
  [[reinterpret_cast<T*>(state.data) + first * of_item * e.summary_size()]]
  [[reinterpret_cast<T*>(state.data) + 0 * first]])
mutant(fused_state_key_sums_of_the_first_item cuda_state cuda/fused/plan.hpp
  [[state.data + plane + first * of_item * e.feature_dim]]
  [[state.data + plane]])
mutant(fused_state_planes_of_a_part cuda_state cuda/fused/plan.hpp
  [[const Index plane = batch * of_item * e.summary_size();]]
  [[const Index plane = e.keys.batch * (batch > 0) * of_item * e.summary_size();]])
mutant(fused_state_of_one_plane cuda_state cuda/fused/forward_pass.cuh
  [[if (call.plan.in_state) {]]
  [[if (false) {]])
mutant(fused_state_computed_again cuda_state cuda/fused/backward_pass.cuh
  [[if (!call.plan.in_state) summarize_blocks<backward_parts>(call);]]
  [[summarize_blocks<backward_parts>(call);]])
mutant(cuda_path_refusal_ignored_where_asked cuda_path cuda/path.hpp
  [[if (refusal != Refusal::none && asked != CudaPath::automatic && asked != CudaPath::cublas)]]
  [[if (refusal == Refusal::empty)]])
mutant(cuda_path_longest_time cuda_path cuda/path.hpp
  [[seconds(other) < seconds(choice.path)]]
  [[seconds(other) > seconds(choice.path)]])
mutant(cuda_path_slices_of_another_kernel cuda_path cuda/fused/token_bytes.hpp
  [[value_dim / summary_slice(static_cast<int>(value_dim))]]
  [[value_dim / value_slice(static_cast<int>(value_dim), 256)]])
mutant(cuda_path_read_out_in_one_slice cuda_path cuda/fused/token_bytes.hpp
  [[bytes.read += slices * (features(pairs) +]]
  [[bytes.read += (features(pairs) +]])
mutant(cuda_path_own_tiles_the_other_way_round cuda_path cuda/fused/token_bytes.hpp
  [[later ? numbered : all * (tiles_of_block + 1) - numbered]]
  [[later ? all * (tiles_of_block + 1) - numbered : numbered]])
mutant(cuda_path_causal_pairs_up_to_the_block cuda_path cuda/fused/quadratic_bytes.hpp
  [[if (sees == Sees::past_tokens) seen.end = xs.end;]]
  [[if (sees == Sees::past_tokens) seen.end = keys.all().end;]])
mutant(cuda_path_near_bytes_not_moved cuda_path cuda/kernel_cost.hpp
  [[near_bytes = left;]]
  [[near_bytes = 0;]])
mutant(cuda_path_head_dims_of_another_entry cuda_path cuda/head_dims.hpp
  [[return key_dim_of_call == KeyDim && value_dim_of_call == ValueDim;]]
  [[return key_dim_of_call == KeyDim || value_dim_of_call == ValueDim;]])
mutant(cuda_path_mask_left_to_fused_passes cuda_path cuda/pipeline.cuh
  [[if constexpr (requires { attention.masks; }) clear_masked(device, attention.masks.query, y);]]
  [[if (path == CudaPath::cublas)
    if constexpr (requires { attention.masks; }) clear_masked(device, attention.masks.query, y);]])

# The CUDA backend's decoder and saved summaries
mutant(cuda_decode_closing_block_weighted_as_own cuda_decode cuda/decode_step.cuh
  [[scores[i] = row[tile.block - 1] *]]
  [[scores[i] = row[tile.block] *]])
mutant(cuda_decode_without_the_own_token cuda_decode cuda/decode_step.cuh
  [[j <= tile.first + query.t; ++j]]
  [[j < tile.first + query.t; ++j]])
mutant(cuda_decode_key_sum_goes_on_in_the_next_block cuda_decode cuda/decode_step.cuh
  [[tile.first == 0 ? A(0) : z]]
  [[tile.first == 0 && tile.block == 0 ? A(0) : tile.first == 0 ? step.key_sum(u, tile.block - 1)[c] : z]])
mutant(cuda_decode_last_block_never_mixed cuda_decode cuda/decode_step.cuh
  [[= mixed + row[tile.block - 1] * closed;]]
  [[= mixed;]])
mutant(cuda_decode_share_of_rows_cut_short cuda_decode cuda/decode_step.cuh
  [[even_split(e.feature_dim, e.block_tokens, tile.first + tile.tokens)) return;]]
  [[even_split(e.feature_dim, e.block_tokens, tile.first + tile.tokens - 1)) return;]])
mutant(cuda_decode_matrix_of_another_group cuda_decode cuda/decode_step.cuh
  [[u % e.kv_heads * e.group_size + g;
    return mixing]]
  [[g;
    return mixing]])
mutant(cuda_decode_mixed_for_the_first_head_only cuda_decode cuda/decode_step.cuh
  [[e.matrices == 1 ? 0 : g]]
  [[0 * g]])
mutant(cuda_decode_memory_of_another_sequence cuda_decode cuda/decode_step.cuh
  [[return first_sequence * e.kv_heads + u;]]
  [[return first_sequence + u;]])
mutant(cuda_decode_turned_by_the_place_in_the_block cuda_decode cuda/decode_step.cuh
  [[tile.block * step.e.block_tokens + tile.first + t, i % pairs]]
  [[tile.first + t, i % pairs]])
mutant(cuda_decode_past_the_last_block cuda_decode cuda/decode_step.cuh
  [[block < e.blocks && first]]
  [[first]])
mutant(cuda_decode_snapshot_without_positions cuda_decode cuda/decoding.cuh
  [[copy(from.positions, to.positions);]]
  [[]])
mutant(cuda_saved_summaries_of_the_first_items cuda_decode cuda/pipeline.cuh
  [[plan.summaries.data = state.data + first * of_item * e.summary_size();]]
  [[plan.summaries.data = state.data;]])
mutant(cuda_saved_key_sums_over_summaries cuda_decode cuda/pipeline.cuh
  [[batch * of_item * e.summary_size() + first * of_item * e.feature_dim;]]
  [[first * of_item * e.feature_dim;]])
mutant(cuda_saved_summaries_computed_again cuda_decode cuda/pipeline.cuh
  [[if (state.data == nullptr) summarize_blocks(part);]]
  [[summarize_blocks(part);]])

# Addresses that no kernel can follow
mutant(cuda_unregistered_inverted cuda_decode cuda/device_memory.cuh
  [[attributes.type == cudaMemoryTypeUnregistered]]
  [[attributes.type != cudaMemoryTypeUnregistered]])
mutant(cuda_thrown_error_left_behind cuda_decode cuda/device_memory.cuh
  [[if (cudaPeekAtLastError() == status) cudaGetLastError();]]
  [[]])
mutant(cuda_workspace_anywhere cuda_decode cuda/device_memory.cuh
  [[require_device_memory(workspace, "workspace");]]
  [[]])
mutant(cuda_dk_anywhere cuda_decode cuda/pipeline.cuh
  [[if (gradients.key.wanted) require_device_memory(gradients.key.view, "dk");]]
  [[]])
mutant(cuda_memory_of_what_is_skipped cuda_decode cuda/pipeline.cuh
  [[if (gradients.value.wanted) require_device_memory]]
  [[require_device_memory]])
mutant(cuda_decoded_value_anywhere cuda_decode cuda/decoding.cuh
  [[require_device_memory(v, "v");]]
  [[]])
mutant(address_between_elements cuda_decode policy/requests.hpp
  [[% alignment != 0)]]
  [[% alignment > 4)]])

# The CUDA backend, executed on the CPU
mutant(cuda_leading_dimension_of_columns cuda cuda/gemm.cuh
  [[a.data, type, narrow(a.stride)]]
  [[a.data, type, narrow(a.cols)]])
mutant(cuda_transposes_swapped cuda cuda/gemm.cuh
  [[a, CUBLAS_OP_N, b, CUBLAS_OP_T, a.cols]]
  [[a, CUBLAS_OP_T, b, CUBLAS_OP_N, a.cols]])
mutant(cuda_beta_forgotten cuda cuda/gemm.cuh
  [[into == Into::add ? 1 : 0;]]
  [[into == Into::add ? 0 : 0;]])
mutant(cuda_float_not_pedantic cuda cuda/gemm.cuh
  [[CUBLAS_COMPUTE_32F_PEDANTIC]]
  [[CUBLAS_COMPUTE_32F]])
mutant(cuda_handle_on_its_own_stream cuda cuda/gemm.cuh
  [[check_cublas(cublasSetStream(handle_, device.stream())]]
  [[check_cublas(cublasSetStream(handle_, stream_)]])
mutant(cuda_math_mode_not_restored cuda cuda/gemm.cuh
  [[cublasSetMathMode(handle_, math_mode_);]]
  [[]])
mutant(cuda_pointer_mode_not_restored cuda cuda/gemm.cuh
  [[cublasSetPointerMode(handle_, pointer_mode_);]]
  [[]])
mutant(cuda_triangle_strict cuda cuda/gemm.cuh
  [[first + r + 1 - lag]]
  [[first + r - lag]])
mutant(cuda_corner_of_a_triangle_dropped cuda cuda/gemm.cuh
  [[triangle.columns_of(r / corner_rows * corner_rows)]]
  [[triangle.columns_of(r)]])
mutant(cuda_transposed_corner_dropped cuda cuda/gemm.cuh
  [[if (k >= triangle.columns_of(group))]]
  [[if (k > triangle.columns_of(a.rows))]])
mutant(cuda_block_table_one_short cuda cuda/block_table.cuh
  [=[if (entry >= count[0]]=]
  [=[if (entry + 1 >= count[0]]=])
mutant(cuda_row_of_mix_of_the_whole_batch cuda cuda/block_table.cuh
  [[mix_rows[block] = b;]]
  [[mix_rows[block] = block;]])
mutant(cuda_position_in_the_batch cuda cuda/block_table.cuh
  [[place = {of.begin + position, position};]]
  [[place = {of.begin + position, of.begin + position};]])
mutant(cuda_sequences_of_the_first_launch cuda cuda/block_table.cuh
  [[if (body.sequences == at_once) run();]]
  [[if (body.sequences == at_once) body.sequences = blocks = 0;]])
mutant(cuda_heads_of_another_group cuda cuda/block_table.hpp
  [[unit % kv_heads * group_size + g,]]
  [[unit % kv_heads + g * kv_heads,]])
mutant(cuda_mask_ignored cuda cuda/block_table.hpp
  [[mask(item, found.token) == 0]]
  [[mask(item, found.token) > 1]])
mutant(cuda_absent_keys_count cuda cuda/token_block.cuh
  [[present ? scale * out[c] : A(0)]]
  [[present ? scale * out[c] : A(1)]])
mutant(cuda_absent_elements_count cuda cuda/token_block.cuh
  [[i % dim))))
                                : A(0);]]
  [[i % dim))))
                                : A(1);]])
mutant(cuda_masked_rows_kept cuda cuda/token_block.cuh
  [[if (mask(n, t) == 0) tensor(n, h, t, c) = T{};]]
  [[if (mask(n, t) == 2) tensor(n, h, t, c) = T{};]])
mutant(cuda_scattered_not_accumulated cuda cuda/token_block.cuh
  [=[update == Update::overwrite ? panel[i] : static_cast<A>(load(to)) + panel[i]]=]
  [=[panel[i]]=])
mutant(cuda_elements_not_accumulated cuda cuda/token_block.cuh
  [[update == Update::overwrite ? result : static_cast<A>(load(to)) + result]]
  [[result]])
mutant(cuda_query_gradient_not_rotated_back cuda cuda/backward_pass.cuh
  [[plan.grad_queries.data, plan.grad_queries.data, Turn::back]]
  [[plan.grad_queries.data, plan.grad_queries.data, Turn::forward]])
mutant(cuda_key_gradient_not_rotated_back cuda cuda/backward_pass.cuh
  [[plan.grad_keys.data, plan.grad_keys.data,
         Turn::back]]
  [[plan.grad_keys.data, plan.grad_keys.data,
         Turn::forward]])
mutant(cuda_key_sum_gradient_of_rotated_queries cuda cuda/backward_pass.cuh
  [[weighted_row_sums(device, query_panels(e, plan.queries, e.feature_dim),]]
  [[weighted_row_sums(device, query_panels(e, plan.rotated_queries, e.feature_dim),]])
mutant(cuda_keys_without_key_sums cuda cuda/backward_pass.cuh
  [[add_weighted_row<A>(device, grad_keys, nullptr, plan.grad_key_sums.data);]]
  [[]])
mutant(cuda_dmix_without_key_sums cuda cuda/backward_pass.cuh
  [[if constexpr (mixes_key_sums<V>) add(plan.grad_mixed_key_sums, plan.key_sums, e.feature_dim);]]
  [[]])
mutant(cuda_matrices_of_a_group_replaced cuda cuda/backward_pass.cuh
  [[m.matrix == 0 ? Into::overwrite : Into::add]]
  [[Into::overwrite]])
mutant(cuda_own_block_mixed_too cuda cuda/forward_pass.cuh
  [[masks_own_block<V> ? 1 : 0]]
  [[masks_own_block<V> ? 0 : 0]])
mutant(cuda_units_of_another_kv_head cuda cuda/forward_pass.cuh
  [[shared ? 1 : e.queries.kv_heads]]
  [[1]])
mutant(cuda_products_of_the_first_head cuda cuda/forward_pass.cuh
  [[first_unit * of.of_unit() + g * of.table.block_tokens]]
  [[first_unit * of.of_unit() + g % 1 * of.table.block_tokens]])
mutant(cuda_dmix_of_the_first_matrix cuda cuda/forward_pass.cuh
  [[(first_unit * extents.matrices + matrix) * size,]]
  [[(first_unit * extents.matrices + matrix % 1) * size,]])
mutant(cuda_own_weight_missing cuda cuda/intra_block.cuh
  [[scores.row(n, r)[col] *= weights(n / blocks, n % blocks, g);]]
  [[static_cast<void>(scores.row(n, r)[col] * weights(n / blocks, n % blocks, g));]])
mutant(cuda_own_weight_of_the_first_head cuda cuda/intra_block.cuh
  [[*= weights(n / blocks, n % blocks, g);]]
  [[*= weights(n / blocks, n % blocks, g % 1);]])
mutant(cuda_group_sum_missing cuda cuda/intra_block.cuh
  [[for (Index g = 0; g < rows.group_size; ++g) {]]
  [[for (Index g = 0; g < 1; ++g) {]])
mutant(cuda_own_key_sums_of_another_block cuda cuda/intra_block.cuh
  [[return r / rows.of_block() * rows.table.block_tokens]]
  [[return r / rows.of_unit() * rows.table.block_tokens]])
mutant(cuda_own_part_of_dmix_of_the_first_block cuda cuda/intra_block.cuh
  [[if (rows.table.mix_rows[b] != i) continue;]]
  [[if (b != i) continue;]])
mutant(cuda_c_without_1_over_den cuda cuda/readout.cuh
  [[: -inner_product(feature_dim, rotated + at, grad_rotated + at) / den;]]
  [[: -inner_product(feature_dim, rotated + at, grad_rotated + at);]])
mutant(cuda_epsilon_forgotten cuda cuda/readout.cuh
  [[key_sums + n * features.cols) +
                      epsilon;]]
  [[key_sums + n * features.cols) +
                      A(0);]])
mutant(cuda_epsilon_of_products_forgotten cuda cuda/mixed_product.cuh
  [[denominators[r] += epsilon;]]
  [[denominators[r] += A(0);]])
mutant(cuda_dmix_of_the_last_item_dropped cuda cuda/block_mixing.cuh
  [[p < count; p +=]]
  [[p < count - kv_heads; p +=]])
mutant(cuda_dmix_not_accumulated cuda cuda/block_mixing.cuh
  [[to = update == Update::overwrite ? static_cast<A>(sum) : to + static_cast<A>(sum);]]
  [[to = static_cast<A>(sum);]])
mutant(cuda_dmix_above_the_diagonal cuda cuda/block_mixing.cuh
  [[!(own || sight.sees(i, b))]]
  [[!(own || sight.sees(0, 0) || i < b)]])
mutant(cuda_mask_of_the_first_part cuda cuda/batch_part.hpp
  [[mask.data += first * mask.stride[0];]]
  [[mask.data += 0 * first;]])
mutant(cuda_parts_of_dmix_replaced cuda cuda/backward_pass.cuh
  [[m.gradient(plan.grad_mixing), Into::add);]]
  [[m.gradient(plan.grad_mixing), Into::overwrite);]])
mutant(cuda_pairs_prefetch_before_the_barrier cuda_pairs cuda/fused/tile_ring.cuh
  [[block.sync();  // this tile has landed, and the one before has been read
      begin(tile + Stages - 1);]]
  [[begin(tile + Stages - 1);
      block.sync();]])
mutant(cuda_pairs_next_token_seen cuda_pairs cuda/fused/quadratic.cuh
  [[seen = seen && key_row <= query_row + ahead;]]
  [[seen = seen && key_row <= query_row + ahead + 1;]])
mutant(cuda_pairs_infinities_overlooked cuda_pairs cuda/fused/quadratic.cuh
  [[hides = hides || key_begin + Rows > query_begin + 1;]]
  [[hides = hides || key_begin > query_begin + 1;]])
mutant(cuda_pairs_epsilon_forgotten cuda_pairs cuda/fused/quadratic.cuh
  [[const float den = row_sum<rows>(Shapes::sums(0), row) + epsilon;]]
  [[const float den = row_sum<rows>(Shapes::sums(0), row);]])
mutant(cuda_pairs_keys_of_the_first_head cuda_pairs cuda/fused/quadratic_key_gradient.cuh
  [[ys.head * of.sharing.heads + tile / tiles_of_head,]]
  [[ys.head * of.sharing.heads + tile / tiles_of_head % 1,]])
mutant(cuda_pairs_denominators_without_gradient cuda_pairs cuda/fused/quadratic_key_gradient.cuh
  [[return is_twofold ? r * product : r * product + c;]]
  [[return is_twofold ? r * product : r * product + 0 * c;]])
mutant(cuda_pairs_dmix_of_the_first_column cuda_pairs cuda/fused/quadratic_mixing_gradient.cuh
  [[products.at(row, column * column_length + n)]]
  [[products.at(row, column % 1 * column_length + n)]])
mutant(cuda_pairs_of_a_call_not_waited_for cuda_pairs cuda/fused/quadratic.cuh
  [[machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const BlockTable& table = of.q.x.table;
    const TokenRange xs = of.template query_tile<rows>(block.number);
    const Index kv_head = xs.head / of.sharing.heads;
    const EntryRange seen = keys_seen<sees>(table, of.k.x.table, of.packed, xs.begin, xs.end);]]
  [[const BlockTable& table = of.q.x.table;
    const TokenRange xs = of.template query_tile<rows>(block.number);
    const Index kv_head = xs.head / of.sharing.heads;
    const EntryRange seen = keys_seen<sees>(table, of.k.x.table, of.packed, xs.begin, xs.end);
    copy_tokens<threads>(block, of.q.x, xs, FeatureTile{Shared{features_at}});
    machine::wait_for_earlier_kernels();]])
mutant(cuda_pairs_of_queries_begin_a_call_early cuda_pairs cuda/fused/quadratic_query_gradient.cuh
  [[machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const BlockTable& table = of.q.x.table;]]
  [[const PairOperands<T, Map, Rotates>& of = operands.of;
    const BlockTable& table = of.q.x.table;
    machine::load_from(table.places.data);
    machine::wait_for_earlier_kernels();]])
mutant(cuda_pairs_of_keys_read_weights_early cuda_pairs cuda/fused/quadratic_key_gradient.cuh
  [[if constexpr (Divides) machine::wait_for_earlier_kernels();
    MixingOfHead mixing{};]]
  [[if constexpr (Divides) {
      operands.template read_weights<rows>(block, xs_of(0), Shapes::sums(0), Shapes::sums(1));
      machine::wait_for_earlier_kernels();
    }
    MixingOfHead mixing{};]])
mutant(cuda_pairs_of_dmix_not_waited_for cuda_pairs cuda/fused/quadratic_mixing_gradient.cuh
  [[machine::wait_for_earlier_kernels();]]
  [[]])

# Fused kernels: the backward pass through summaries
mutant(fused_gradient_without_c cuda_gradients cuda/fused/feature_gradient.cuh
  [[(machine::read<float>(number(weight, t)) * d +
                      machine::read<float>(number(sum_weight, t)));]]
  [[(machine::read<float>(number(weight, t)) * d);]])
mutant(fused_gradient_of_the_last_tile_only cuda_gradients cuda/fused/feature_gradient.cuh
  [[for (y.begin = range.begin; y.begin >= begin; y.begin -= rows) {]]
  [[for (y.begin = range.begin; y.begin >= std::max(begin, range.begin); y.begin -= rows) {]])
mutant(fused_gradient_slice_copied_before_the_barrier cuda_gradients cuda/fused/feature_gradient.cuh
  [[block.sync();  // this slice has landed, and the one before has been read
      begin_copy(step + 1);]]
  [[begin_copy(step + 1);
      block.sync();]])
mutant(fused_gradient_phi_of_features cuda_gradients cuda/fused/feature_gradient.cuh
  [[if constexpr (adds_own && of_queries) {
      copy_tokens<threads>(block, x.x, range, x_tile());]]
  [[if constexpr (adds_own && of_queries) {]])
mutant(fused_gradient_turned_forward cuda_gradients cuda/fused/feature_gradient.cuh
  [[turn_quad<KeyDim>(angles, n, Turn::back, g);]]
  [[turn_quad<KeyDim>(angles, n, Turn::forward, g);]])
mutant(fused_gradient_meets_infinities cuda_gradients cuda/fused/feature_gradient.cuh
  [[if (found_infinities<warps>(static_cast<Shared>(flags_at))) {]]
  [[if (found_infinities<0>(static_cast<Shared>(flags_at))) {]])
mutant(fused_gradient_own_part_of_dmix_without_c cuda_gradients cuda/fused/feature_gradient.cuh
  [[present ? r * products + c * scores : 0.0f]]
  [[present ? r * products : 0.0f]])
mutant(fused_own_queries_of_the_first_head cuda_gradients cuda/fused/own_tokens.cuh
  [[for (Index h = 0; h < own.heads(); ++h) {]]
  [[for (Index h = 0; h < 1; ++h) {]])
mutant(fused_own_queries_without_a_weight cuda_gradients cuda/fused/readout.cuh
  [[return weight * own.weight_scale * number(at.own_weights, j) * score;]]
  [[return weight * own.weight_scale * score;]])
mutant(fused_key_sums_of_weighted_features cuda_gradients cuda/fused/block_summary.cuh
  [[weight == 0 ? 0.0f : of_sum / weight;]]
  [[weight == 0 ? 0.0f : of_sum;]])
mutant(fused_gradient_waits_behind_key_sums cuda_gradients cuda/fused/feature_gradient.cuh
  [[machine::wait_for_earlier_kernels();
    if constexpr (Normalizes)
      for (int c = block.thread; c < KeyDim; c += threads)
        machine::write(static_cast<Shared>(c * 4),
                       machine::load_from(key_sums + summary * KeyDim + c));]]
  [[if constexpr (Normalizes)
      for (int c = block.thread; c < KeyDim; c += threads)
        machine::write(static_cast<Shared>(c * 4),
                       machine::load_from(key_sums + summary * KeyDim + c));
    machine::wait_for_earlier_kernels();]])
mutant(fused_gradient_waits_behind_the_summary cuda_gradients cuda/fused/feature_gradient.cuh
  [[machine::wait_for_earlier_kernels();
    if constexpr (Normalizes)]]
  [[machine::load_from(summaries.data + summary * KeyDim * ValueDim);
    machine::wait_for_earlier_kernels();
    if constexpr (Normalizes)]])
mutant(fused_gradient_not_waited_for cuda_gradients cuda/fused/feature_gradient.cuh
  [[machine::wait_for_earlier_kernels();]]
  [[]])

# Fused kernels: the forward pass through summaries
mutant(fused_summary_prefetch_before_the_barrier cuda_summaries cuda/fused/block_summary.cuh
  [[block.sync();  // this tile has landed, and the one before has been read
      begin_copy(tile + stages - 1);]]
  [[begin_copy(tile + stages - 1);
      block.sync();]])
mutant(fused_readout_prefetch_before_the_barrier cuda_summaries cuda/fused/readout.cuh
  [[block.sync();  // this tile has landed, and the one before has been read
        begin_copy(tile + stages - 1);]]
  [[begin_copy(tile + stages - 1);
        block.sync();]])
mutant(fused_summary_waits_for_one_copy_less cuda_summaries cuda/fused/block_summary.cuh
  [[machine::wait_for_copies<stages - 2>();]]
  [[machine::wait_for_copies<stages - 1>();]])
mutant(fused_summary_of_features_being_made cuda_summaries cuda/fused/block_summary.cuh
  [[[](int) {});
      block.sync();
      multiply_add]]
  [[[](int) {});
      multiply_add]])
mutant(fused_readout_of_features_being_made cuda_summaries cuda/fused/readout.cuh
  [[of_tiles.make_query_features(block, range, features);
      block.sync();]]
  [[of_tiles.make_query_features(block, range, features);]])
mutant(fused_absent_tokens_count cuda_summaries cuda/fused/features.cuh
  [[const bool present = place.token >= 0;]]
  [[const bool present = place.token >= -1;]])
mutant(fused_tokens_of_the_next_block cuda_summaries cuda/fused/tokens.cuh
  [[if (entry >= range.end) return {-1, 0};]]
  [[if (entry >= table.places.size) return {-1, 0};]])
mutant(fused_rows_of_another_warp cuda_summaries cuda/fused/features.cuh
  [[return warp / apart * 8 + warp % apart]]
  [[return warp / apart * 8 + warp % 1]])
mutant(fused_angles_of_another_axis cuda_summaries cuda/fused/features.cuh
  [[* axis.count - axis.first;]]
  [[* axis.count;]])
mutant(fused_rotation_of_other_pairs cuda_summaries cuda/fused/features.cuh
  [[if (angles.rotation->layout.gap == 1) {]]
  [[if (angles.rotation->layout.gap != 1) {]])
mutant(fused_own_token_unseen cuda_summaries cuda/fused/own_tokens.cuh
  [[: y.begin + j <= x.begin + t;]]
  [[: y.begin + j < x.begin + t;]])
mutant(fused_own_weight_dropped cuda_summaries cuda/fused/readout.cuh
  [[return weight * score;]]
  [[return score;]])
mutant(fused_own_weight_of_the_first_head cuda_summaries cuda/fused/own_tokens.cuh
  [[heads == 1 ? 0 : head;]]
  [[heads == 1 ? 0 : 0 * head;]])
mutant(fused_matrix_of_the_first_head cuda_summaries cuda/fused/readout.cuh
  [[head % sharing.heads / sharing.heads_of_matrix();]]
  [[0 * head;]])
mutant(fused_key_sums_rounded cuda_summaries cuda/fused/readout.cuh
  [[machine::load_from(key_sums + summary * KeyDim + c));]]
  [[machine::first_of<T>(machine::rounded_pair<T>(
                           machine::load_from(key_sums + summary * KeyDim + c), 0.0f)));]])
mutant(fused_half_summaries_not_scaled_back cuda_summaries cuda/fused/readout.cuh
  [[float unscale = 1 / summaries.scale;]]
  [[float unscale = 1;]])
mutant(fused_infinities_ignored cuda_summaries cuda/fused/readout.cuh
  [[if (found_infinities<warps>(at.flags)) {]]
  [[if (found_infinities<0>(at.flags)) {]])
mutant(fused_elements_next_to_each_other cuda_summaries cuda/fused/tile.cuh
  [[machine::load_from(from.data + first + e * from.step)]]
  [[machine::load_from(from.data + first + e)]])
mutant(fused_mixing_without_the_lower_plane cuda_summaries cuda/fused/block_mixing.cuh
  [[if (plane == 0) machine::multiply_add<T>(to, coefficients.low]]
  [[if (plane < 0) machine::multiply_add<T>(to, coefficients.low]])
mutant(fused_mixing_without_the_last_tile cuda_summaries cuda/fused/block_mixing.cuh
  [[(work.inner_end(end_row(item)) + Side - 1) / Side - first_tile(item);]]
  [[work.inner_end(end_row(item)) / Side - first_tile(item);]])
mutant(fused_mixing_reads_a_tile_being_written cuda_summaries cuda/fused/block_mixing.cuh
  [[        // The copies of all threads are there, and nobody reads the other stage any more.
        block.sync();]]
  [[]])
# Fused kernels: summaries that stay in shared memory
mutant(resident_matrix_in_a_ring_being_read cuda_resident cuda/fused/resident.cuh
  [[block.sync();  // the ring has been read, and key sums are complete]]
  [[]])
mutant(resident_mixing_before_the_matrix_is_there cuda_resident cuda/fused/resident.cuh
  [[block.sync();
    mix_summaries(block);]]
  [[mix_summaries(block);]])
mutant(resident_written_before_the_warp_has_read cuda_resident cuda/fused/resident.cuh
  [[block.sync_warp();]]
  [[]])
mutant(resident_mixing_of_rows_behind_the_last cuda_resident cuda/fused/resident.cuh
  [[p * 16 + lane % 16 < last ? p * 16 + lane % 16 : last;]]
  [[p * 16 + lane % 16;]])
mutant(resident_matrix_rounded cuda_resident cuda/fused/resident.cuh
  [[machine::multiply_add<T>(sum[half], of_low, upper, lower);]]
  [[]])
mutant(resident_infinities_reach_earlier_blocks cuda_resident cuda/fused/resident.cuh
  [[if (guarded) guard_unseen<T>(]]
  [[if (guarded && row < 0) guard_unseen<T>(]])
mutant(resident_later_blocks_seen cuda_resident cuda/fused/resident.cuh
  [[b < keys.blocks && sight.sees(i, b);]]
  [[b < keys.blocks;]])
mutant(resident_summaries_of_blocks_before cuda_resident cuda/fused/resident.cuh
  [[sum.clear();]]
  [[]])
mutant(resident_key_sums_of_blocks_before cuda_resident cuda/fused/resident.cuh
  [[for (float& element : quad) element = 0;]]
  [[for (float& element : quad) element += 0;]])
mutant(resident_key_sums_rounded cuda_resident cuda/fused/resident.cuh
  [[machine::write<float>(key_sum(b) + static_cast<Shared>(col * 4), of_column);]]
  [[machine::write<float>(key_sum(b) + static_cast<Shared>(col * 4),
                                  machine::first_of<T>(machine::rounded_pair<T>(of_column, 0)));]])
mutant(resident_values_of_the_first_slice cuda_resident cuda/fused/resident.cuh
  [[value_tile(tile % stages), part.column);]]
  [[value_tile(tile % stages), 0);]])
mutant(resident_queries_of_the_first_head cuda_resident cuda/fused/resident.cuh
  [[part.head + tile / of_block / blocks,]]
  [[part.head + 0 * tile,]])
mutant(resident_matrix_of_the_first_head cuda_resident cuda/fused/resident.cuh
  [[part.kv_head * sharing.heads + matrix * sharing.heads_of_matrix();]]
  [[part.kv_head * sharing.heads + 0 * matrix;]])
mutant(resident_half_summaries_not_scaled_back cuda_resident cuda/fused/resident.cuh
  [[const float unscale = 1 / scale;]]
  [[const float unscale = 1;]])
mutant(resident_result_over_features_being_read cuda_resident cuda/fused/resident.cuh
  [[block.sync();  // features have been read, denominators written]]
  [[]])
mutant(resident_result_stored_before_it_is_there cuda_resident cuda/fused/resident.cuh
  [[readout.write(block, sum, out);
          block.sync();]]
  [[readout.write(block, sum, out);]])
mutant(resident_memory_of_a_block_less cuda_resident cuda/fused/resident.hpp
  [[records_at() + blocks * record_bytes();]]
  [[records_at() + (blocks - 1) * record_bytes();]])
mutant(resident_slices_for_another_chip cuda_path cuda/fused/resident.hpp
  [[<= shared_bytes) return shape.slice;]]
  [[> 0) return shape.slice;]])
mutant(resident_asked_for_gradients cuda_path cuda/path.hpp
  [[if (direction == Direction::backward && !has_backward(path))]]
  [[if (direction == Direction::backward && has_backward(path))]])
mutant(resident_idle_processors_count cuda_path cuda/kernel_cost.hpp
  [[(alone ? moving + computing : std::max(moving, computing)) / busy;]]
  [[(alone ? moving + computing : std::max(moving, computing));]])
# Fused kernels: stages in one launch
mutant(persistent_readout_does_not_wait cuda_persistent cuda/fused/persistent.cuh
  [[[&] { wait_for(UnitStage::mix, unit); }, shift]]
  [[[&] { wait_for(UnitStage::summarize, unit); }, shift]])
mutant(persistent_mixing_does_not_wait cuda_persistent cuda/fused/persistent.cuh
  [[const auto wait = [&] { wait_for(UnitStage::summarize, unit); };]]
  [[const auto wait = [&] { block.sync(); };]])
mutant(persistent_places_that_are_being_read cuda_persistent cuda/fused/persistent.cuh
  [[if (unit >= places) wait_for(UnitStage::read_out, unit - places);]]
  [[if (unit >= places) wait_for(UnitStage::mix, unit - places);]])
mutant(persistent_waits_for_a_part_less cuda_persistent cuda/fused/persistent.cuh
  [[static_cast<std::uint32_t>(parts));]]
  [[static_cast<std::uint32_t>(parts - 1));]])
mutant(persistent_only_one_thread_waits cuda_persistent cuda/fused/persistent.cuh
  [[static_cast<std::uint32_t>(parts));
      block.sync();]]
  [[static_cast<std::uint32_t>(parts));]])
mutant(persistent_announced_before_it_is_written cuda_persistent cuda/fused/persistent.cuh
  [[block.sync();  // all of it is written, and nobody reads shared memory any more]]
  [[]])
mutant(persistent_ticket_over_one_being_read cuda_persistent cuda/fused/persistent.cuh
  [[const auto number = machine::read<std::uint32_t>(Shared{0});
    block.sync();]]
  [[const auto number = machine::read<std::uint32_t>(Shared{0});]])
mutant(persistent_counters_not_cleared cuda_persistent cuda/fused/persistent_pass.cuh
  [[clear(device, plan.counters);]]
  [[]])
mutant(persistent_places_for_a_step_less cuda_persistent cuda/fused/persistent.hpp
  [[Index{4} * of_step]]
  [[Index{2} * of_step]])
mutant(persistent_units_behind_the_last cuda_persistent cuda/fused/persistent.hpp
  [[return step > units / of_step ? units : step * of_step;]]
  [[return step * of_step;]])
mutant(persistent_key_sums_before_they_are_there cuda_persistent cuda/fused/persistent.cuh
  [[machine::wait_for_copies<0>();
    block.sync();]]
  [[machine::wait_for_copies<0>();]])
mutant(persistent_key_sums_of_later_blocks cuda_persistent cuda/fused/persistent.cuh
  [[b < work.inner_end(i + 1); ++b]]
  [[b < work.inner; ++b]])
mutant(persistent_key_sums_by_the_first_matrix cuda_persistent cuda/fused/persistent.cuh
  [[unit % work.kv_heads * mixing.head_stride;]]
  [[unit * 0 * mixing.head_stride;]])
mutant(persistent_summaries_by_the_first_matrix cuda_persistent cuda/fused/block_mixing.cuh
  [[(unit % work.kv_heads * work.units_of_group + unit / work.kv_heads) * work.panels;]]
  [[unit / work.kv_heads * work.panels;]])
mutant(persistent_queries_of_the_first_head cuda_persistent cuda/fused/readout.cuh
  [[return kv_head * sharing.heads + n % sharing.heads +]]
  [[return kv_head * sharing.heads +]])
mutant(persistent_taken_before_it_was_measured cuda_path cuda/path.hpp
  [[if (is_chosen(other) && choice.can(other)]]
  [[if (choice.can(other)]])
mutant(persistent_for_matrices_of_query_heads cuda_path cuda/path.hpp
  [[if (extents.matrices != 1) return Refusal::persistent_matrices;]]
  [[]])

mutant(fused_summary_of_a_call_not_waited_for cuda_summaries cuda/fused/block_summary.cuh
  [[wait();  // this may be the first kernel of a call
    Accumulators<KeyDim, slice, 4, 2> sum;
    float key_sum[std::size_t{Quads<KeyDim>::of_lane}][4] = {};
    for (int tile = 0; tile < stages - 1; ++tile) begin_copy(tile);]]
  [[Accumulators<KeyDim, slice, 4, 2> sum;
    float key_sum[std::size_t{Quads<KeyDim>::of_lane}][4] = {};
    for (int tile = 0; tile < stages - 1; ++tile) begin_copy(tile);
    wait();]])
mutant(fused_summary_does_not_wait cuda_summaries cuda/fused/block_summary.cuh
  [[machine::wait_for_earlier_kernels();]]
  [[]])
mutant(fused_readout_waits_behind_the_summary cuda_summaries cuda/fused/readout.cuh
  [[copy_tile(0);  // never the first kernel of a call: the tokens are there]]
  [[copy_tile(0);
    machine::load_from(summaries.data + summary * KeyDim * ValueDim);]])
mutant(fused_readout_does_not_wait cuda_summaries cuda/fused/readout.cuh
  [[machine::wait_for_earlier_kernels();]]
  [[]])
mutant(fused_mixing_waits_behind_the_summaries cuda_summaries cuda/fused/block_mixing.cuh
  [[wait();
      copy(item(number), 0, stage);]]
  [[copy(item(number), 0, stage);
      wait();]])
mutant(fused_mixing_does_not_wait cuda_summaries cuda/fused/block_mixing.cuh
  [[wait();
      copy(]]
  [[copy(]])
# Mixing of 16-bit summaries
mutant(cuda_mixing_prefetch_before_the_barrier cuda_mixing cuda/fused/block_mixing.cuh
  [[block.sync();
        if (n + 1 < terms)]]
  [[if (n + 1 < terms)]])
mutant(cuda_mixing_written_before_all_have_read cuda_mixing cuda/fused/block_mixing.cuh
  [[block.sync();
      // Taken apart once more]]
  [[// Taken apart once more]])
mutant(cuda_mixing_rounds_the_matrix cuda_mixing cuda/fused/block_mixing.cuh
  [[if (plane == 0) machine::multiply_add<T>]]
  [[if (plane == 2) machine::multiply_add<T>]])
mutant(cuda_mixing_infinities_reach_earlier_blocks cuda_mixing cuda/fused/block_mixing.cuh
  [[if (guarded) guard_unseen<T>(]]
  [[if (guarded && row < 0) guard_unseen<T>(]])
mutant(cuda_mixing_keeps_the_matrix_of_another_head cuda_mixing cuda/fused/block_mixing.cuh
  [[if (held != current.group)]]
  [[if (held < 0)]])
mutant(cuda_mixing_gradient_without_low_parts cuda_mixing cuda/fused/mixing_gradient.cuh
  [[multiply(1, 0);]]
  [[]])
mutant(cuda_mixing_adds_one_split cuda_mixing cuda/fused/mixing_gradient.cuh
  [[for (Index split = 0; split < work.splits; ++split) sum]]
  [[for (Index split = 0; split < 1; ++split) sum]])
mutant(cuda_mixing_columns_behind_the_last cuda_mixing cuda/fused/block_mixing.cuh
  [[c * chunk_size < cols;]]
  [[c * chunk_size < cols + 8;]])
mutant(cuda_mixing_gradient_begins_early_in_one_block cuda_mixing cuda/fused/mixing_gradient.cuh
  [[machine::wait_for_earlier_kernels();
    Index rest = block.number;
    const Index b]]
  [[if (block.number > 0) machine::wait_for_earlier_kernels();
    Index rest = block.number;
    const Index b]])

# The exponential in arithmetic
mutant(exponential_of_the_other_half kernels cpu/exponential.hpp
  [[const float r = (x - n * ln2_high) - n * ln2_low;]]
  [[const float r = (x - n * ln2_high) + n * ln2_low;]])
mutant(exponential_scaled_at_once kernels cpu/exponential.hpp
  [[return power * two_to(half) * two_to(whole - half);]]
  [[return power * two_to(whole) * two_to(half - half);]])
mutant(elu_without_its_line kernels cpu/exponential.hpp
  [[return x > 0.0f ? above : below;]]
  [[return x > 1.0f ? above : below;]])

# Kernels that begin before those in front of them have ended
mutant(fused_mixing_of_a_state_waits_behind_the_matrix cuda_state cuda/fused/forward_pass.cuh
  [[const bool is_new = this->plan.in_state && this->plan.parts == backward_parts;]]
  [[const bool is_new = false;]])
mutant(resident_does_not_wait cuda_resident cuda/fused/resident.cuh
  [[machine::wait_for_earlier_kernels();  // this is the first kernel of a call]]
  [[]])
