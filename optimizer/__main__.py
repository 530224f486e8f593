"""``python -m tilewright.optimizer``: the ``optimize`` command."""

import sys

from .cli import main

sys.exit(main())
