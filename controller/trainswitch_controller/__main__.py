"""``python -m trainswitch_controller``: the same as the ``trainswitch`` command."""

import sys

from trainswitch_controller.cli import main

if __name__ == "__main__":
    sys.exit(main())
