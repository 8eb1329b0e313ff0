"""What all tests share: runs whose numbers do not depend on the cache of compiled steps."""

from __future__ import annotations

import os

# `compile=auto` changes to compiled steps when there are some, which no test can foresee. Those
# that are about it set the variable to "auto", and a cache of their own.
os.environ["ASSAY_COMPILE"] = "false"
