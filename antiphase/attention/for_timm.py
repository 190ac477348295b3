"""A mechanism with the constructor and the call of timm's attention layers.

VisionTransformer(..., attn_layer=timm_layer("diff_v1", lam_init=0.8))
"""

from typing import Any, ClassVar

from torch import Tensor, nn

from antiphase.attention.registry import mechanism


class TimmLayer(nn.Module):
    """Attention on [B, N, dim], constructed as `timm.layers.Attention`.

    Args:
        dim: D, the width of the tokens.
        num_heads: of the standard layer that this one replaces.
        attn_head_dim: width of the standard heads; dim / num_heads by default.
        dim_out: must be `dim`, or None.
        qkv_bias: whether all projections but the last have a bias.
        qk_norm: must be False.
        scale_norm: must be False.
        proj_bias: whether the output projection has a bias.
        gated: must be False; the mechanism "gated" has a gate.
        attn_drop: probability to drop a weight of the map that is applied to V, in training.
        proj_drop: dropout of the output.
        norm_layer: not used without `qk_norm` and `scale_norm`.
        depth: index of the block; V1's lam_init depends on it. timm passes it to its own
            differential layer only, so that others get 0; give a constant `lam_init` instead.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: an argument that the mechanisms do not have.
    """

    attention: ClassVar[str] = "diff_v1"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        gated: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: type[nn.Module] | None = None,
        depth: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if dim_out not in (None, dim):
            raise ValueError(f"dim_out: got {dim_out}, expected the width of the tokens, {dim}")
        for name, given in {"qk_norm": qk_norm, "scale_norm": scale_norm, "gated": gated}.items():
            if given:
                raise ValueError(f"{name}: got {given}, which {self.attention} does not have")
        self.layer = mechanism(self.attention)(
            dim,
            num_heads,
            head_dim=attn_head_dim,
            layer=depth,
            bias=qkv_bias or proj_bias,
            dropout=attn_drop,
            **self.options,
        )
        for part in self.layer.modules():
            wanted = proj_bias if part is self.layer.o_proj else qkv_bias
            if isinstance(part, nn.Linear) and not wanted:
                part.register_parameter("bias", None)
        self.proj_drop = nn.Dropout(proj_drop)
        self.to(device=device, dtype=dtype)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Return [B, N, dim].

        Args:
            x: [B, N, dim].
            attn_mask: broadcasts to [B, heads, N, N], boolean (True: attend) or additive.
            is_causal: each token attends to itself and earlier ones.
        """
        if attn_mask is not None:
            attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + attn_mask.shape)
        out: Tensor = self.layer(x, causal=is_causal, mask=attn_mask)
        return self.proj_drop(out)


def timm_layer(attention: str, **options: Any) -> type[TimmLayer]:
    """Return a class that timm takes as `attn_layer`.

    Args:
        attention: name of the mechanism.
        **options: the mechanism's own.

    Raises:
        ValueError: there is no such mechanism, or it reads tokens in their order, which the patches
            of an image do not have.
    """
    if mechanism(attention).causal_only:
        raise ValueError(
            f"attention: {attention} reads tokens in their order, but timm's layers attend to all "
            "patches at once; choose another mechanism"
        )
    name = f"Timm{mechanism(attention).__name__}"
    return type(name, (TimmLayer,), {"attention": attention, "options": options})
