# SPDX-License-Identifier: MIT
# The planted faults: name, the killer that must notice (<killer>_killer.cpp), the header, the text to
# find there exactly once, and what takes its place.

# Mixing
mutant(mix_transposed cpu cpu/plan.hpp
  [[= mix(h, i, b);]]
  [[= mix(h, b, i);]])
mutant(mix_adjoint_not_transposed cpu cpu/block_mixing.hpp
  [[multiply_left_transposed(grad, columns, grad_mixed, into);]]
  [[multiply(grad, columns, grad_mixed, into);]])
mutant(mix_adjoint_of_first_group_only cpu cpu/block_mixing.hpp
  [[mixing.data + first, mixing.rows]]
  [[mixing.data, mixing.rows]])
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
  [[multiply_left_transposed(summary, rotated, values, into);]]
  [[multiply_left_transposed(summary, rotated, values);]])
mutant(summary_of_unrotated_keys cpu cpu/block_summary.hpp
  [[multiply_left_transposed(summary, rotated, values, into);]]
  [[multiply_left_transposed(summary, features, values, into);]])
mutant(dv_of_unrotated_keys cpu cpu/backward_unit.hpp
  [[summarize_value_gradient<A>(k.features.rotated,]]
  [[summarize_value_gradient<A>(k.features.features,]])
mutant(dk_without_normalizer cpu cpu/backward_unit.hpp
  [[outer_product(grad_keys.unrotated, {}, grad_key_sum);]]
  [[scale_rows(grad_keys.unrotated, A(0));]])
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
  [[outer_product(total.unrotated, c, mixed.key_sum(i));]]
  [[total.unrotated.rows = 0;]])
mutant(dy_not_divided cpu cpu/backward_unit.hpp
  [[divide_rows<A>(u, denominators);]]
  [[]])
mutant(dz_of_last_tile_only cpu cpu/readout.hpp
  [[weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, into);]]
  [[weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, Into::overwrite);]])
mutant(ds_of_unrotated_queries cpu cpu/backward_unit.hpp
  [[read_out_summary_gradient<A>(q.rotated, u, grad.summary(i), into);]]
  [[read_out_summary_gradient<A>(q.features, u, grad.summary(i), into);]])
mutant(query_head_of_another_group cpu cpu/forward_unit.hpp
  [[const Index head = unit.kv_head * e.group_size + g;]]
  [[const Index head = unit.kv_head + g * plan.problem.shape.kv_heads;]])
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
  [[++c) to[c] = f(from[c * stride]);]]
  [[++c) to[c] = f(from[c]);]])
mutant(stride_ignored_on_writing cpu cpu/token_block.hpp
  [[store(to[c * tokens.stride], from[c]);]]
  [[store(to[c], from[c]);]])
mutant(dv_not_accumulated cpu cpu/token_block.hpp
  [[store(to[c * tokens.stride], static_cast<A>(load(to[c * tokens.stride])) + from[c]);]]
  [[store(to[c * tokens.stride], from[c]);]])
mutant(scale_missing_in_backward cpu cpu/token_block.hpp
  [[for (Index c = 0; c < features; ++c) g[c] *= scale;]]
  [[]])
mutant(rotation_not_turned_back cpu cpu/rotation_table.hpp
  [[const A s = Back ? -sine[j] : sine[j];]]
  [[const A s = sine[j];]])
mutant(rotation_angle_in_float cpu cpu/rotation_table.hpp
  [[static_cast<double>(position) * frequency;]]
  [[static_cast<float>(static_cast<double>(position) * frequency);]])
mutant(run_crosses_the_edge_of_a_block cpu policy/block_geometry.hpp
  [[return left < block[axis] ? left : block[axis];]]
  [[return left < block[axis] ? left : block[axis] + (left > block[axis]);]])
mutant(long_product_overwrites_its_sum cpu cpu/kernels.inc
  [[                              c + col, c_stride, add || first > 0);]]
  [[                              c + col, c_stride, add);]])
mutant(long_transposed_product_overwrites_its_sum cpu cpu/kernels.inc
  [[                 add || first > 0);]]
  [[                 add);]])
mutant(product_without_its_last_columns cpu cpu/kernels.inc
  [[if (col < cols)]]
  [[if (col > cols)]])
mutant(product_of_long_rows_without_their_ends cpu cpu/kernels.inc
  [=[for (Index l = k; l < depth; ++l) total[j]]=]
  [=[for (Index l = depth; l < depth; ++l) total[j]]=])
mutant(product_of_long_rows_added cpu cpu/kernels.inc
  [[    if (!add)
      for (Index i = 0;]]
  [[    if (add)
      for (Index i = 0;]])
mutant(workspace_a_byte_short cpu core/workspace.hpp
  [[if (workspace.size < bytes)]]
  [[if (workspace.size + 1 < bytes)]])

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
mutant(eigen_alias_overlooked eigen eigen/operand.hpp
  [[share_memory(destination, value.view())]]
  [[share_memory(destination, query.view())]])

# Causal modes
mutant(causal_without_its_triangle causal cpu/intra_block.hpp
  [[multiply_lower(numerators, scores, scaled_values, Into::add);]]
  [[multiply(numerators, scores, scaled_values, Into::add);]])
mutant(causal_past_with_the_own_block causal cpu/plan.hpp
  [[past_lag = masks_own_block<L> ? 1 : 0;]]
  [[past_lag = 0;]])
mutant(block_causal_past_without_the_own_block causal cpu/plan.hpp
  [[past_lag = masks_own_block<L> ? 1 : 0;]]
  [[past_lag = 1;]])
mutant(causal_own_weight_dropped causal cpu/forward_unit.hpp
  [[scale_rows(own.values, own_weight);]]
  [[]])
mutant(causal_own_weight_dropped_from_key_sums causal cpu/forward_unit.hpp
  [[running_key_sums<A>(own.features, own_weight,]]
  [[running_key_sums<A>(own.features, A(1),]])
mutant(causal_tile_not_taken_up causal cpu/forward_unit.hpp
  [[absorb_own_tile<A>(own.rotated, own.values, mixed.summary(i));]]
  [[static_cast<void>(own);]])
mutant(causal_tile_not_taken_up_in_backward causal cpu/backward_unit.hpp
  [[absorb_own_tile<A>(own.rotated, own.values, mixed.summary(i));]]
  [[static_cast<void>(own);]])
mutant(causal_key_sum_a_token_late causal cpu/intra_block.hpp
  [[add_scaled_row(running.data, own_weight, keys.row(t), keys.cols);
    copy_row(sums.row(t), running.data, keys.cols);]]
  [[copy_row(sums.row(t), running.data, keys.cols);
    add_scaled_row(running.data, own_weight, keys.row(t), keys.cols);]])
mutant(causal_tiles_of_keys_first_to_last causal cpu/backward_unit.hpp
  [[for (Index t = block.tiles - 1; t >= 0; --t) {]]
  [[for (Index t = 0; t < block.tiles; ++t) {]])
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
  [[multiply_lower(grad_rotated, scores, rotated_keys, Into::add);]]
  [[]])
mutant(causal_dk_sums_from_the_front causal cpu/intra_block.hpp
  [[for (Index t = rows.rows - 1; t >= 0; --t) {]]
  [[for (Index t = 0; t < rows.rows; ++t) {]])
mutant(causal_w_of_the_block_before causal cpu/backward_unit.hpp
  [[std::fill_n(scratch.own.grad_running.data, scratch.own.grad_running.size, A(0));]]
  [[]])
mutant(causal_ds_with_the_own_block causal cpu/block_mixing.hpp
  [[first + grad.rows - 1 + lag);]]
  [[first + grad.rows - 1);]])
mutant(causal_dmix_without_its_last_column causal cpu/block_mixing.hpp
  [[for (Index b = seen_by_all + top - 1; b <= first + i - lag; ++b)]]
  [[for (Index b = seen_by_all + top - 1; b < first + i - lag; ++b)]])

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
  [[mix<A>(Panel<const A>{next, 1, tile.block, tile.block}, summaries,]]
  [[mix<A>(Panel<const A>{next, 1, tile.block - 1, tile.block}, summaries.row_range(0, tile.block - 1),]])
mutant(decode_key_sum_a_block_late causal cpu/decode_step.hpp
  [[mix<A>(Panel<const A>{next, 1, block + 1, block + 1},
           panel(unit.key_sums.data, block + 1, e.feature_dim),]]
  [[mix<A>(Panel<const A>{next, 1, block, block},
           panel(unit.key_sums.data, block, e.feature_dim),]])
mutant(decode_closing_block_forgotten causal cpu/decode_step.hpp
  [[if (tile.block >= 1)
    add(]]
  [[if (tile.block >= 99)
    add(]])
mutant(decode_past_its_capacity causal decoding.hpp
  [[if (position(s) + tokens > capacity_)]]
  [[if (position(s) + tokens > capacity_ + 1)]])
mutant(decode_state_unchecked causal decoding.hpp
  [[if (stored.checksum != checksum(]]
  [[if (false && stored.checksum != checksum(]])
mutant(extend_by_the_first_row causal mixing_matrix.hpp
  [[return known(head, blocks - 1, std::max(Index{0}, blocks - 1 - (i - b)));]]
  [[return known(head, 0, std::max(Index{0}, blocks - 1 - (i - b)));]])
