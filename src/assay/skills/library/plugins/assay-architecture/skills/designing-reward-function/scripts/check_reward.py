"""Check the section `reward` of a problem: scale, sign, potentials, dominance, hacking.

    python check_reward.py problem.yaml [--json]

Exit code 0: nothing in it is an error. 2: something cannot work, or the file cannot be read.
"""

import sys

from assay.design.standalone import check_section

if __name__ == "__main__":
    sys.exit(check_section("reward", __doc__))
