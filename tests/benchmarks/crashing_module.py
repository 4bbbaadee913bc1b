"""What a contender needs whose process crashes: importing it ends the process."""

import os

os._exit(3)
