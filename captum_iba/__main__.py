"""``python -m captum_iba`` is ``captum-iba``."""

from captum_iba.cli import main

if __name__ == "__main__":
    main()
