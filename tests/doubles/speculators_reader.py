"""A program for an interpreter with the package speculators: reads exported heads with it, and runs one.

Its arguments are the folder of a head, and a file of arrays: tokens [length], taps [length, taps x width] and
embeddings [vocabulary, width]. It writes the logits of each draft step [steps, length - 1, draft vocabulary] to the
file, and prints the tensors that it missed or did not expect. Without arrays it only loads the head.
"""

from __future__ import annotations

import json
import sys

NUM_STEPS = 3


def main(folder: str, arrays: str = "") -> None:
    import numpy as np
    import torch
    from speculators import SpeculatorModel, SpeculatorModelConfig
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.models.peagle import PEagleDraftModel

    torch.set_num_threads(1)
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    kind = PEagleDraftModel if config.speculators_model_type == "peagle" else Eagle3DraftModel
    load = SpeculatorModel.from_pretrained.__func__  # that of the kinds gives no loading info
    model, loading = load(kind, folder, config=config, dtype=torch.float32, output_loading_info=True)
    print(json.dumps({name: sorted(loading[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}))
    if not arrays:
        return
    given = {name: torch.from_numpy(array) for name, array in np.load(arrays).items()}
    with torch.no_grad():
        model.embed_tokens.weight.copy_(given["embeddings"])
        if "output" in given:
            model.lm_head.weight.copy_(given["output"])
    logits = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0].detach().numpy()))
    with torch.no_grad():
        model(
            hidden_states=given["taps"][None, :-1],
            input_ids=given["tokens"][None, 1:],
            document_ids=torch.zeros(1, len(given["tokens"]) - 1, dtype=torch.long),
            ttt_steps=NUM_STEPS,
        )
    np.savez(arrays, logits=np.stack(logits))


if __name__ == "__main__":
    main(*sys.argv[1:])
