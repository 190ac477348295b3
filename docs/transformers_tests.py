"""Run transformers' own model tests on our models, by mechanism.

    pip download --no-deps --no-binary :all: transformers==VERSION    # installed; unpack it
    pip install parameterized
    python docs/transformers_tests.py path/to/transformers-VERSION diff_v1 diff_v2

The tests are those of `ModelTesterMixin` in the source distribution, which stays outside of this
repository. Its tests of generation and of exporters are not distributed;
`tests/models/test_conventions.py` and `test_export.py` are ours.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = ("test_modeling_common.py", "test_configuration_common.py")
STUBS = {  # what these files import and the distribution lacks
    "exporters/test_export.py": "class ExportTesterMixin: pass",
    "generation/test_utils.py": "class GenerationTesterMixin: pass",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}",
}


def main(distribution: Path, names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tests = Path(scratch, "tests")
        for name, text in STUBS.items():
            (tests / name).parent.mkdir(parents=True, exist_ok=True)
            (tests / name).write_text(text)
            (tests / name).with_name("__init__.py").touch()
        (tests / "__init__.py").touch()
        for name in FILES:
            shutil.copy(distribution / "tests" / name, tests / name)
        shutil.copy(__file__, tests / "test_antiphase.py")
        for name in names:
            environment = os.environ | {"MECHANISM": name, "HF_HUB_OFFLINE": "1"}
            print(name, flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=line", "tests"]
            subprocess.run([*command, "-k", "Antiphase"], cwd=scratch, env=environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["standard", "diff_v1", "diff_v2", "low_rank_noise"])
else:
    import unittest

    import torch
    from transformers.models.auto import modeling_auto

    import antiphase.models

    from .test_modeling_common import GenerationTesterMixin, ModelTesterMixin, ids_tensor

    HEADS = {  # class -> the table by which the tests know what labels it takes
        "AntiphaseModel": "MODEL_MAPPING_NAMES",
        "AntiphaseForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "AntiphaseForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        "AntiphaseForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "AntiphaseForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    }
    for name, table in HEADS.items():
        getattr(modeling_auto, table)["antiphase"] = name

    class Tester:
        """Makes configurations and inputs."""

        batch_size, seq_length, is_training, num_labels, num_choices = 13, 7, True, 3, 4
        vocab_size, hidden_size, num_hidden_layers, type_sequence_label_size = 99, 32, 2, 2

        def __init__(self) -> None:
            # of the maps; those of the configuration are the standard layer's
            self.num_attention_heads = self.get_config().attention_layer().head_counts["heads"]

        def get_config(self):
            return antiphase.models.AntiphaseConfig(
                attention=os.environ["MECHANISM"],
                vocab_size=self.vocab_size,
                hidden_size=self.hidden_size,
                intermediate_size=40,
                num_hidden_layers=self.num_hidden_layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=512,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )

        def prepare_config_and_inputs_for_common(self):
            ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
            mask = torch.tril(torch.ones_like(ids))
            return self.get_config(), {"input_ids": ids, "attention_mask": mask}

    class AntiphaseTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
        """All tests of the mixin."""

        all_model_classes = tuple(getattr(antiphase.models, name) for name in HEADS)

        def setUp(self):
            self.model_tester = Tester()
