# SPDX-License-Identifier: MIT
"""Attention layers of the released models (arXiv 2601.07832). Parameters have the released names, so that a
layer loads a released state and can replace the attention of a model that is already built:

    for block in model.blocks:  # an official DeiT
        block.attn = mhla_torch.nn.WindowAttention.like(block.attn, heads=6, grid=16)

and a layer for models of your own. After each step of the optimizer call layer.project()."""
import torch
from torch import nn
from torch.nn import functional

from . import Decoder, attention, initial_mix, project_


class Mix(nn.Module):
    """A mix as the released vision models keep it: the weight of a convolution, [blocks, blocks, 1, 1]."""

    def __init__(self, block, grid, **initial):
        super().__init__()
        matrix = initial_mix(block=block, grid=grid, **initial)
        self.conv = nn.Conv2d(matrix.shape[1], matrix.shape[0], 1, bias=False)
        self.conv.weight = nn.Parameter(matrix[:, :, None, None].clone())

    def forward(self):
        return self.conv.weight[:, :, 0, 0]


def _take_over(made, layer):
    """The state of a released layer, its epsilons and dropout, device, type and mode."""
    state = layer.state_dict()
    made.load_state_dict(state)
    theirs = dict(layer.named_modules())
    for name, module in made.named_modules():
        for setting in ("eps", "p"):
            if hasattr(module, setting) and hasattr(theirs.get(name), setting):
                setattr(module, setting, getattr(theirs[name], setting))
    return made.to(next(iter(state.values()))).train(layer.training)


def _split(x, heads):
    """[batch, tokens, heads * dim] -> [batch, tokens, heads, dim]"""
    return x.unflatten(-1, (heads, -1))


class WindowAttention(nn.Module):
    """Attention of the released DeiT and DiT: tokens in block order, windows of a square image.

    x [batch, windows, tokens of a window, dim], or [batch, tokens, dim] with the windows joined. The
    defaults are DeiT's; DiT has qkv_bias=True, qk_norm=False, lepe_kernel=3.

    dim, heads     of the tokens
    grid, window   (rows, columns) of tokens, and of a window; an int is both
    """

    def __init__(self, dim, heads, grid, window, *, qkv_bias=False, qk_norm=True, lepe_kernel=5, dropout=0.0,
                 norm_eps=1e-5, feature_epsilon=1e-6, normalizer_epsilon=1e-6, precision="exact", **initial):
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim is {dim}, which does not make {heads} heads of equal size")
        grid, window = (2 * (x,) if isinstance(x, int) else tuple(x) for x in (grid, window))
        if any(extent % part for extent, part in zip(grid, window)):
            raise ValueError(f"grid is {grid}, which windows of {window} do not divide: MixedProduct needs "
                             "windows of one size")
        self.heads, self.grid, self.window = heads, grid, window
        self.options = dict(block=window[0] * window[1], normalizer="mixed_product", layout="bnhd",
                            feature_epsilon=feature_epsilon, normalizer_epsilon=normalizer_epsilon,
                            precision=precision)
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        # The released norms name no epsilon: it is that of the numbers' type.
        self.q_norm = nn.RMSNorm(dim) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(dim) if qk_norm else nn.Identity()
        self.lepe = nn.Conv2d(dim, dim, lepe_kernel, padding=lepe_kernel // 2, groups=dim) if lepe_kernel else None
        self.piece_attn = Mix(window, grid, **initial)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    @classmethod
    def like(cls, layer, heads, grid, **options):
        """A layer with the state of a released one, on its device and of its type. The state does not contain
        heads and grid."""
        state = layer.state_dict()
        windows = len(state["piece_attn.conv.weight"])
        grid = 2 * (grid,) if isinstance(grid, int) else tuple(grid)
        side = round((grid[0] * grid[1] / windows) ** 0.5)
        lepe = state.get("lepe.weight")
        made = cls(state["norm.weight"].numel(), heads, grid, side, qkv_bias="to_qkv.bias" in state,
                   qk_norm="q_norm.weight" in state, lepe_kernel=0 if lepe is None else lepe.shape[-1], **options)
        return _take_over(made, layer)

    def forward(self, x):
        shape = x.shape
        q, k, v = self.to_qkv(self.norm(x.flatten(1, -2))).chunk(3, -1)
        q, k = self.q_norm(q), self.k_norm(k)
        y = attention(*(_split(a, self.heads) for a in (q, k, v)), self.piece_attn(), **self.options).flatten(2)
        if self.lepe is not None:
            y = y + self._blocks(self.lepe(self._image(v)))
        return self.to_out(y).view(shape)

    def _image(self, x):
        """[batch, tokens in block order, dim] -> [batch, dim, rows, columns]"""
        (rows, columns), (height, width) = self.grid, self.window
        x = x.unflatten(1, (rows // height, columns // width, height, width))
        return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)

    def _blocks(self, x):
        (rows, columns), (height, width) = self.grid, self.window
        x = x.unflatten(3, (columns // width, width)).unflatten(2, (rows // height, height))
        return x.permute(0, 2, 4, 3, 5, 1).flatten(1, 4)

    def project(self):
        """Limits the mix to [0, 1]."""
        project_(self.piece_attn.conv.weight)


class VideoAttention(nn.Module):
    """Self-attention of the released Wan: x [batch, tokens in raster order, dim] -> the same.

    grid           (frames, rows, columns) of tokens
    layout         number of blocks on each axis
    normalize_out  whether attention divides by its normalizer; the released configuration says no (norm_output)
    norm           RMS norm of the results: of each head's, "heads"; of all together, "tokens"; or None
    gate           whether results are multiplied by SiLU(g(x))
    lepe           whether a 3 x 3 x 3 convolution of v is added
    out_rmsnorm    whether the projected result passes an RMS norm

    The defaults are MHLA_Video_Uni's. Gated_MHLA_Video has norm="tokens", gate=True; MHLA_Video and
    MHLA_Video_LePE have norm=None.
    """

    def __init__(self, dim, heads, grid, layout, *, qk_norm=True, normalize_out=True, norm="heads", gate=False,
                 lepe=False, out_rmsnorm=False, rotation="axial", theta=10000.0, feature_epsilon=1e-6, eps=1e-6,
                 precision="exact", **initial):
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim is {dim}, which does not make {heads} heads of equal size")
        if norm not in ("heads", "tokens", None):
            raise ValueError(f'norm is {norm!r}, but must be "heads", "tokens" or None')
        block = tuple(-(-extent // blocks) for extent, blocks in zip(grid, layout))
        self.heads, self.grid, self.normalize_out, self.norm = heads, tuple(grid), normalize_out, norm
        self.options = dict(block=block, grid=self.grid, normalizer="mixed_product" if normalize_out else None,
                            normalizer_epsilon=eps, rotation=rotation, theta=theta,
                            feature_epsilon=feature_epsilon, layout="bnhd", precision=precision)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q = nn.RMSNorm(dim, eps) if qk_norm else nn.Identity()
        self.norm_k = nn.RMSNorm(dim, eps) if qk_norm else nn.Identity()
        self.g_norm = nn.RMSNorm(dim // heads if norm == "heads" else dim, eps) if norm else nn.Identity()
        self.g = nn.Linear(dim, dim) if gate else None
        self.lepe = nn.Conv3d(dim, dim, 3, padding=1, groups=dim) if lepe else None
        self.out_rmsnorm = nn.RMSNorm(dim, eps) if out_rmsnorm else nn.Identity()
        self.block_attn = Mix(block, self.grid, **initial)

    @classmethod
    def like(cls, layer, heads, grid, layout, **options):
        """A layer with the state of a released one, on its device and of its type."""
        state = layer.state_dict()
        dim, norm = len(state["q.weight"]), None
        if "g_norm.weight" in state:
            norm = "heads" if len(state["g_norm.weight"]) == dim // heads else "tokens"
        options = dict(normalize_out=layer.normalize_out) | options
        made = cls(dim, heads, grid, layout, qk_norm="norm_q.weight" in state, norm=norm, gate="g.weight" in state,
                   lepe="lepe.weight" in state, out_rmsnorm="out_rmsnorm.weight" in state, **options)
        return _take_over(made, layer)

    def forward(self, x):
        q, k, v = self.norm_q(self.q(x)), self.norm_k(self.k(x)), self.v(x)
        y = attention(*(_split(a, self.heads) for a in (q, k, v)), self.block_attn(), **self.options)
        y = self.g_norm(y).flatten(2) if self.norm == "heads" else self.g_norm(y.flatten(2))
        if self.g is not None:
            y = y * functional.silu(self.g(x))
        if self.lepe is not None:
            y = y + self.lepe(v.mT.unflatten(2, self.grid)).flatten(2).mT
        return self.out_rmsnorm(self.o(y))

    def project(self):
        """Nothing: the released Wan does not limit its mix."""


class _CausalConvolution(nn.Conv1d):
    """Of each channel with its past, and SiLU."""

    def __init__(self, dim, size):
        super().__init__(dim, dim, size, groups=dim, padding=size - 1, bias=False)

    def forward(self, x):
        return functional.silu(super().forward(x.mT)[..., : x.shape[1]].mT)


class _Features(nn.Module):
    """What the released language model makes of q or k, [batch, tokens, heads, dim], before its rotation.

    operators   the map that the operator itself applies to the result, with the rotation; None: there is
                nothing left to do, as this rotates, too. The released rotation turns the first dim features,
                which are not all that hedgehog and dpfp have.
    """

    operators = dict(relu="relu", t2r="relu", elu="elu_plus_one", identity="identity",
                     elementwise_product="identity", hedgehog=None, dpfp=None)

    def __init__(self, kind, dim, rotation, theta):
        super().__init__()
        if kind not in self.operators:
            raise ValueError(f"feature_map is {kind!r}, but must be one of " + ", ".join(map(repr, self.operators)))
        self.kind, self.rotation, self.theta = kind, rotation, theta
        self.count = dim * dict(hedgehog=2, dpfp=8).get(kind, 1)
        if kind in ("t2r", "hedgehog"):
            self.layer = nn.Linear(dim, dim, bias=kind == "hedgehog")
        if kind == "elementwise_product":
            self.layer1, self.layer2 = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, position=0):
        if self.kind == "elementwise_product":
            return self.layer1(x) * self.layer2(x)
        z = self.layer(x) if hasattr(self, "layer") else x
        if self.operators[self.kind]:
            return z
        if self.kind == "hedgehog":
            features = torch.cat((2 * z, -2 * z), -1).softmax(-1)
        else:  # as released; DPFP's paper has relu(-z) in the second half
            pair = torch.cat((z.relu(), -z.relu()), -1)
            features = torch.cat([pair * pair.roll(j, -1) for j in range(1, 5)], -1)
        if self.rotation is None:
            return features
        first, rest = features.split((x.shape[-1], self.count - x.shape[-1]), -1)
        return torch.cat((self._rotated(first, position), rest), -1)

    def _rotated(self, x, position):
        dim = x.shape[-1]
        place = torch.arange(position, position + x.shape[1], device=x.device, dtype=torch.float64)
        angle = place[:, None] * self.theta ** -(torch.arange(0, dim, 2, device=x.device, dtype=torch.float64) / dim)
        cos, sin = (f[:, None].to(x.dtype) for f in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    @classmethod
    def kind_of(cls, layer):
        """Of a released layer."""
        of_q = layer.feature_map_q
        names = set(of_q.state_dict()) if isinstance(of_q, nn.Module) else set()
        if isinstance(of_q, _Features):
            return of_q.kind
        if "layer1.weight" in names:
            return "elementwise_product"
        if "layer.weight" in names:
            return "hedgehog" if "layer.bias" in names else "t2r"
        kinds = dict(ReLU="relu", Identity="identity", DPFPFeatureMap="dpfp", function="elu")
        if type(of_q).__name__ not in kinds:
            raise ValueError(f"the layer's feature_map_q is {of_q!r}, which is none of the released ones: give "
                             "like(...) the feature_map that it is")
        return kinds[type(of_q).__name__]


class LanguageAttention(nn.Module):
    """Attention of the released language model: x [batch, tokens, dim] -> the same, causal.

    expand_k, expand_v   dimensions of keys and of values, all heads together, divided by dim
    blocks, block        rows of the mix, and tokens of a block; a sequence has at most blocks * block tokens
    conv_size            taps of the convolutions of q, k and v; 0: none
    gate                 whether the normed result is multiplied by SiLU(g_proj(x))
    feature_map          "relu", "elu", "identity", "t2r", "hedgehog", "dpfp" or "elementwise_product"
    rotation             "half_split" or None
    """

    def __init__(self, dim, heads, *, kv_heads=None, expand_k=0.5, expand_v=1.0, blocks=32, block=64, conv_size=0,
                 gate=True, feature_map="relu", feature_epsilon=0.0, rotation="half_split", theta=10000.0,
                 norm_eps=1e-6, precision="exact"):
        super().__init__()
        kv_heads = kv_heads or heads
        keys, values = round(dim * expand_k), round(dim * expand_v)
        if keys % heads or values % heads or heads % kv_heads:
            raise ValueError(f"{keys} and {values} channels of keys and values do not make {heads} heads, of "
                             f"which groups share {kv_heads}")
        self.heads, self.kv_heads = heads, kv_heads
        self.feature_map_q, self.feature_map_k = (_Features(feature_map, keys // heads, rotation, theta)
                                                  for _ in range(2))
        inside = self.feature_map_q.operators[feature_map]
        self.options = dict(block=block, causal=True, normalizer=None, rotation=rotation if inside else None,
                            theta=theta, feature_map=inside or "identity", feature_epsilon=feature_epsilon,
                            layout="bnhd", scale=self.feature_map_q.count ** -0.5, precision=precision)
        shared_keys, shared_values = (x * kv_heads // heads for x in (keys, values))
        self.q_proj = nn.Linear(dim, keys, bias=False)
        self.k_proj = nn.Linear(dim, shared_keys, bias=False)
        self.v_proj = nn.Linear(dim, shared_values, bias=False)
        self.g_proj = nn.Linear(dim, values, bias=False) if gate else None
        self.o_proj = nn.Linear(values, dim, bias=False)
        if conv_size:
            self.q_conv1d = _CausalConvolution(keys, conv_size)
            self.k_conv1d = _CausalConvolution(shared_keys, conv_size)
            self.v_conv1d = _CausalConvolution(shared_values, conv_size)
        else:
            self.q_conv1d = self.k_conv1d = self.v_conv1d = nn.Identity()
        mix = initial_mix(block=block, grid=blocks * block, causal=True)
        self.mixing_matrix = nn.Parameter(mix[:, :, None, None, None, None].clone())
        # The names of the released norms, one of which has a gate inside.
        setattr(self, self._norm_name(gate), nn.RMSNorm(values // heads, norm_eps))

    @staticmethod
    def _norm_name(gate):
        return "g_norm_swish_gate" if gate else "g_norm"

    @classmethod
    def like(cls, layer, heads, **options):
        """A layer with the state of a released one, on its device and of its type."""
        state = layer.state_dict()
        keys, dim = state["q_proj.weight"].shape
        values = state["o_proj.weight"].shape[1]
        convolution = state.get("q_conv1d.weight")
        feature_map = options.pop("feature_map", None) or _Features.kind_of(layer)
        made = cls(dim, heads, kv_heads=heads * len(state["k_proj.weight"]) // keys, expand_k=keys / dim,
                   expand_v=values / dim, blocks=len(state["mixing_matrix"]), gate="g_proj.weight" in state,
                   conv_size=0 if convolution is None else convolution.shape[-1],
                   feature_map=feature_map, **options)
        return _take_over(made, layer)

    def forward(self, x):
        q, k, v = (convolution(projection(x)) for projection, convolution in self._projections())
        self.project()  # in every forward pass, as the released layer
        mix = self.mixing_matrix[:, :, 0, 0, 0, 0]
        return self._output(attention(*self._heads(q, k, v), mix, **self.options), x)

    def stream(self, batch=1):
        """A function that generates: it takes any number of next tokens, [batch, tokens, dim], and returns
        their results. Later changes of the mix do not reach it."""
        return _LanguageStream(self, batch)

    def _projections(self):
        return ((self.q_proj, self.q_conv1d), (self.k_proj, self.k_conv1d), (self.v_proj, self.v_conv1d))

    def _heads(self, q, k, v, position=0):
        """What attention takes, from the position of the first token on."""
        return (self.feature_map_q(_split(q, self.heads), position),
                self.feature_map_k(_split(k, self.kv_heads), position), _split(v, self.kv_heads))

    def _output(self, y, x):
        gate = self.g_proj is not None
        y = getattr(self, self._norm_name(gate))(y).flatten(2)
        return self.o_proj(y * functional.silu(self.g_proj(x)) if gate else y)

    def project(self):
        """Limits the mix to [1e-5, 1], with nothing above the diagonal."""
        # .data, as the released layer: a second forward pass before the first one's backward is no error.
        project_(self.mixing_matrix.data[:, :, 0, 0, 0, 0], 1e-5, 1.0, lower_triangle=True)


class _LanguageStream:
    """The state of a LanguageAttention that generates: a decoder, and the last inputs of the convolutions."""

    @torch.no_grad()
    def __init__(self, layer, batch):
        self.layer = layer
        mix = layer.mixing_matrix[:, :, 0, 0, 0, 0].clamp(1e-5, 1)
        options = {name: value for name, value in layer.options.items()
                   if name not in ("causal", "layout", "precision")}
        self.decoder = Decoder(mix, batch=batch, heads=layer.heads, kv_heads=layer.kv_heads,
                               dim=layer.feature_map_q.count,
                               value_dim=layer.o_proj.in_features // layer.heads,
                               dtype=layer.q_proj.weight.dtype, **options)
        self.past = [projection.weight.new_zeros(batch, getattr(convolution, "padding", [0])[0],
                                                 projection.out_features)
                     for projection, convolution in layer._projections()]

    @torch.no_grad()
    def __call__(self, x):
        convolved = []
        for at, (projection, convolution) in enumerate(self.layer._projections()):
            inputs = torch.cat((self.past[at], projection(x)), 1)
            convolved.append(convolution(inputs)[:, -x.shape[1]:])
            self.past[at] = inputs[:, inputs.shape[1] - self.past[at].shape[1]:]
        heads = self.layer._heads(*convolved, self.decoder.position(0))
        y = self.decoder.step(*(a.transpose(1, 2) for a in heads))
        return self.layer._output(y.transpose(1, 2), x)


class MultiHeadLinearAttention(nn.Module):
    """[batch, tokens, dim] -> [batch, tokens, dim], with projections and a learned mix, for models of
    your own.

    grid: the tokens; a number for sequences of at most that length, or an extent for each axis. Other
    options are those of mhla_torch.attention."""

    def __init__(self, dim, heads, *, block, grid, kv_heads=None, causal=False, **options):
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim is {dim}, which does not make {heads} heads of equal size")
        self.heads = [heads, kv_heads or heads, kv_heads or heads]
        self.options = dict(options, block=block, grid=None if isinstance(grid, int) else grid, causal=causal,
                            layout="bnhd")
        self.qkv = nn.Linear(dim, sum(self.heads) * (dim // heads))
        self.mix = nn.Parameter(initial_mix(block=block, grid=grid, causal=causal))
        self.out = nn.Linear(dim, dim)

    def forward(self, x, **options):
        packed = _split(self.qkv(x), sum(self.heads))
        q, k, v = packed.split(self.heads, dim=2)  # views: the operator reads them where they are
        return self.out(attention(q, k, v, self.mix, **self.options, **options).flatten(2))

    def project(self):
        """Limits the mix to [0, 1]."""
        project_(self.mix)
