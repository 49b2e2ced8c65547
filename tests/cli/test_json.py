"""The keys that ``--json`` prints, by command: scripts read them."""

import pytest

CONVERTED = "output n_rows n_features sparse seed classes scaling log1p"
GAP = "certified_gap gap_scope tol reached"
JUDGED = "accuracy balanced_accuracy classes macro confusion n_rows"
KEYS = {
    "convert {text} {new}": CONVERTED,
    "split {data} {new} {new}.test": "parts",
    "info {data}": "kind n_rows n_features storage classes scaling log1p shuffled columns sigma2 "
    "gamma_auto bad_rows advice next",
    "info {text}": "kind n_rows n_features storage classes bad_rows advice next",
    "info {model}": "kind model_kind kernel C gamma n_features n_support classes task status "
    "scaling certified_gap gap_scope advice next",
    "verify {data}": "file intact damage",
    "predict {model} {data} -o {new}": "output n_rows n_unknown",
    "evaluate {model} {data}": f"{JUDGED} positive roc_auc average_precision",
    "evaluate {sure} {data}": f"{JUDGED} brier_score",
    "certify {model} {data}": f"{GAP} pair_gap objective rho",
    "importance {model} {data}": "columns n_rows",
    "export {model} {new}": "output probabilities",
}


@pytest.mark.parametrize("command", KEYS)
def test_keys(ooc_fw, data_file, text_file, model_file, sure_model, tmp_path, command):
    names = {"data": data_file, "text": text_file, "model": model_file, "sure": sure_model}
    words = command.format(**names, new=tmp_path / "new").split()
    assert {*KEYS[command].split()} <= ooc_fw(*words, "--json").json().keys()
