"""``python -m seekway_lab`` is ``seekway-lab``."""

import sys

from seekway_lab.cli import main

sys.exit(main())
