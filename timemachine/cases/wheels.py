"""Put the wheels of this side before what is installed, in vtool's own interpreter."""

import os
import sys

sys.path[:0] = [folder for name, folder in os.environ.items() if name.startswith("WHEEL_")]
