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
  [[mix_matrix_gradient<A>(grad.summaries.row_range(]]
  [[if (false) mix_matrix_gradient<A>(grad.summaries.row_range(]])
mutant(dmix_without_key_sums cpu cpu/backward_unit.hpp
  [[mix_matrix_gradient<A>(grad.key_sums.row_range(]]
  [[if (false) mix_matrix_gradient<A>(grad.key_sums.row_range(]])
mutant(dmix_replaced_not_added cpu cpu/block_mixing.hpp
  [[multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::add);]]
  [[multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::overwrite);]])
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
  [[summarize_value_gradient<A>(k.rotated,]]
  [[summarize_value_gradient<A>(k.features,]])
mutant(dk_without_normalizer cpu cpu/backward_unit.hpp
  [[FeatureGradient<A>{grad_features, {}, grad_key_sum}]]
  [[FeatureGradient<A>{grad_features, {}, {}}]])
mutant(dz_not_mixed cpu cpu/backward_unit.hpp
  [[mix_summary_gradient<A>(mixing, grad.first, grad_mixed.key_sums, grad.key_sums, into);]]
  [[mix_summary_gradient<A>(mixing, grad.first, grad_mixed.key_sums, grad.key_sums, Into::add);]])

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
  [[total = {grad_features, c, mixed.key_sum(i)};]]
  [[total = {grad_features, {}, {}};]])
mutant(dy_not_divided cpu cpu/backward_unit.hpp
  [[divide_rows<A>(u, denominators);]]
  [[]])
mutant(dz_of_last_tile_only cpu cpu/readout.hpp
  [[weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, into);]]
  [[weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, Into::overwrite);]])
mutant(ds_of_unrotated_queries cpu cpu/backward_unit.hpp
  [[read_out_summary_gradient<A>(q.rotated,]]
  [[read_out_summary_gradient<A>(q.features,]])
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
mutant(long_product_overwrites_its_sum cpu cpu/gemm.hpp
  [[l == 0 && into == Into::overwrite;]]
  [[into == Into::overwrite;]])
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
