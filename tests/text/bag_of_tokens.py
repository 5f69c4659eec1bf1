"""A classifier simple enough to attribute by hand: the logits are the sum of a row of numbers a token."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .conftest import VOCABULARY

WORTH = {"good": 1.5, "bad": -2.0, "not": -0.5, "dull": -1.0, "like": 0.75, "##able": 0.25, "un": -0.25}
"""What a token adds to the logit of class 1; all others, also [MASK] and [PAD], add nothing."""


class BagConfig(PretrainedConfig):
    model_type = "bag_of_tokens"


class BagOfTokens(PreTrainedModel):
    """Class 1 gets the worth of the tokens, class 0 half of it off, through two blocks that change nothing."""

    config_class = BagConfig

    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Embedding(len(VOCABULARY), 2)
        self.blocks = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(2)])
        with torch.no_grad():
            self.table.weight.zero_()
            for token, worth in WORTH.items():
                self.table.weight[VOCABULARY.index(token)] = torch.tensor([-worth / 2, worth])
            for block in self.blocks:
                block.weight.copy_(torch.eye(2))

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, attention_mask):
        hidden = self.table(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return SequenceClassifierOutput(logits=(hidden * attention_mask[..., None]).sum(1))


def bag_of_tokens():
    """The model, ready to be used."""
    return BagOfTokens(BagConfig(num_labels=2, pad_token_id=0)).eval()
