"""``python -m seekway.campaign`` is ``seekway-campaign``."""

import sys

from seekway.campaign.cli import main

sys.exit(main())
