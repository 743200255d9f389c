# SPDX-License-Identifier: MIT
"""The names of the library's types, and of the variants made of them. setup.py reads this file, too."""
SCALARS = {"float32": "float", "float64": "double", "bfloat16": "BFloat16", "float16": "Half"}
FEATURE_MAPS = {"relu": "Relu", "squared_relu": "SquaredRelu", "elu_plus_one": "EluPlusOne", "exp": "Exp",
                "identity": "Identity", "softmax": "Softmax", "hedgehog": "Hedgehog", "dpfp": "Dpfp"}
NORMALIZERS = {"mixed_key_sum": "MixedKeySum", "mixed_product": "MixedProduct", None: "Unnormalized"}
ROTATIONS = {None: "NoRotation", "half_split": "HalfSplitRotary", "axial": "AxialRotary"}
MIXINGS = {"dense": "DenseMixing", "separable": "SeparableMixing", "recurrent": "RecurrentMixing"}
CAUSALITIES = {False: "Bidirectional", True: "Causal", "block": "BlockCausal"}
BATCHES = {None: "{}", "packed": "Packed<{}, std::int64_t>", "padded": "Padded<{}>"}


def choose(table, key, argument):
    """The library's name for an argument's value."""
    try:
        return table[key]
    except (KeyError, TypeError):
        raise ValueError(f"mhla: {argument} is {key!r}, but must be one of "
                         + ", ".join(map(repr, table))) from None


def name(scalar, *, feature_map="relu", axes=1, causal=False, normalizer="mixed_key_sum", rotation=None,
         mixing="dense", batch=None):
    """The variant for tensors of a scalar, as C++ writes it. An image is a video of one frame, where it
    is the same: that halves the number of variants."""
    if axes == 2 and rotation is None and mixing == "dense":
        axes = 3
    types = [choose(FEATURE_MAPS, feature_map, "feature_map"), f"Blocks{axes}D",
             choose(CAUSALITIES, causal, "causal"), choose(NORMALIZERS, normalizer, "normalizer"),
             choose(ROTATIONS, rotation, "rotation"), choose(MIXINGS, mixing, "mixing")]
    attention = BATCHES[batch].format(f"Attention<{', '.join(types)}>")
    return f"{attention} of {choose(SCALARS, scalar, 'the type of q')}"


def source(variant, prebuilt=False):
    """The translation unit of a variant: with `prebuilt`, a part of the extension."""
    attention, scalar = variant.rsplit(" of ", 1)
    functions = f"mhla_torch::Functions<{attention}, {scalar}>::all()"
    register = (f'static const bool added = (mhla_torch::add("{variant}", {functions}), true);' if prebuilt
                else f'extern "C" const mhla_torch::Variant mhla_torch_variant;\n'
                     f'const mhla_torch::Variant mhla_torch_variant = {functions};')
    return f'#include "variant.hpp"\nusing namespace mhla;\n{register}\n'


# What the released models have, and the paper's normalizer for sequences, images and video.
PREBUILT = [name(scalar, **variant) for scalar in ("float32", "bfloat16") for variant in (
    dict(normalizer="mixed_product"),                                # DeiT, DiT: tokens in block order
    dict(axes=3, normalizer=None, rotation="axial"),                 # Wan
    dict(causal=True, normalizer=None, rotation="half_split"),       # the language model
    dict(), dict(axes=3), dict(causal=True),
)]


def cuda_source(variant):
    """The kernels of a variant for a GPU, fused for the heads of the released models where it has such."""
    attention, scalar = variant.rsplit(" of ", 1)
    dims = "128, 128" if "Axial" in attention else "128, 256" if "HalfSplit" in attention else "64, 64"
    return f"""#include <mhla/cuda/instantiate.cuh>
#include <type_traits>
using namespace mhla;
using Variant = {attention};
template <>
struct mhla::cuda::FusedHeadDims<Variant, {scalar}> {{
  using List = std::conditional_t<has_fused_passes<Variant, {scalar}>, HeadDimsOf<HeadDims<{dims}>>, HeadDimsOf<>>;
}};
MHLA_INSTANTIATE_CUDA(Variant, {scalar});
"""
