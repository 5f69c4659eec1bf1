"""Settings that all tests share."""

import hypothesis
import torch

# Examples are the same in every run, and a slow machine is no failure.
hypothesis.settings.register_profile("repository", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repository")

# Models here are tiny: threads cost them more than they give.
torch.set_num_threads(1)
