"""stub"""
from .tiles import Tile
TILE=Tile(16,16)
def run_fastest(kernel, call, launch):
    launch(TILE)
