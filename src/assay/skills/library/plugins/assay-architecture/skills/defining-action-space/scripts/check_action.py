"""Check the section `action` of a problem: sizes, bounds, scaling, masks, delays, rate.

    python check_action.py problem.yaml [--json]

Exit code 0: nothing in it is an error. 2: something cannot work, or the file cannot be read.
"""

import sys

from assay.design.standalone import check_section

if __name__ == "__main__":
    sys.exit(check_section("action", __doc__))
