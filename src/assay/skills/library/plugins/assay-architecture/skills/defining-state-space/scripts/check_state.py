"""Check the section `state` of a problem: shapes, bounds, scales, units, leaks, what is not Markov.

    python check_state.py problem.yaml [--json]

Exit code 0: nothing in it is an error. 2: something cannot work, or the file cannot be read.
"""

import sys

from assay.design.standalone import check_section

if __name__ == "__main__":
    sys.exit(check_section("state", __doc__))
