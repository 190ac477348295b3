"""stub"""
from dataclasses import dataclass
import torch
@dataclass(frozen=True)
class Shape:
    d: int; d2: int; dv: int; dtype: torch.dtype; maps: int; shared: bool
@dataclass(frozen=True)
class Tile:
    BM: int; BN: int; warps: int = 4; stages: int = 1; fused: bool = True; hoist: bool = True
    @property
    def options(self): return dict(BM=self.BM,BN=self.BN,HOIST=self.hoist,num_warps=self.warps,num_stages=self.stages)
def padded_width(n): return max(16, 1 << (n-1).bit_length())
