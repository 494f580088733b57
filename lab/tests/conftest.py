import sys
from pathlib import Path

# The package as it stands in the tree.
sys.path.insert(0, str(Path(__file__).parents[1]))
