"""Benchmarks as tasks of lm-evaluation-harness: one file with the items, one YAML beside it.

The YAML files also work with the harness's own command line:

    lm_eval --model hf --model_args pretrained=FOLDER --include_path FOLDER_OF_THIS_PACKAGE \
        --tasks antiphase_needle

An item is a dictionary with at least `prompt` and, where items belong together (one question in
several orders), `cluster`. `antiphase.evaluation.suite.registry` lists the benchmarks.
"""
