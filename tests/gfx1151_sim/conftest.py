"""Makes `gfx1151_sim` importable, as PYTHONPATH=tests does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
