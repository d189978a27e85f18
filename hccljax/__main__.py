"""``python -m hccljax``: the same as the command ``hccljax``."""

import sys

from hccljax.cli import main

sys.exit(main())
