"""An endpoint that talks like a server of SGLang, for the errors of such talk: it samples as a policy does.

What it answers has the form of what SGLang 0.5.23 was seen to answer.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

from safetensors.torch import load_file

from vllm_stand_in import StandIn

GENERATE = "/generate"


class SglangStandIn(StandIn):
    """The state of one server; `fault` may change any answer, `facts` is how it was started."""

    def __init__(self, brain: Any = None, fault: Any = None, **facts: Any) -> None:
        super().__init__(brain, fault)
        self.facts = {
            "version": "0.5.23",
            "enable_deterministic_inference": True,
            "sampling_mask_max_tokens": 4096,
            "custom_weight_loader": ["grouprl_sglang.load"],
            "tp_size": 1,
            **facts,
        }
        self.said = "loaded"
        """What its loader reports; "" where it cannot."""
        self.aborted: list[str] = []

    def answer(self, path: str, body: Any) -> Any:
        self.got.append((path, body))
        if self.down and path == self.down[0]:
            return (500, self.down[1])
        if path == GENERATE:
            return self._generate(body)
        with self.lock:
            return getattr(self, "at" + path.replace("/", "_"))(body)

    def _generate(self, body: dict[str, Any]) -> Any:
        with self.going:
            self.going.wait_for(lambda: not self.paused, 30)
        with self.lock:
            settings, ids = body["sampling_params"], body["input_ids"]
            if not settings["max_new_tokens"]:
                told = [
                    [None, ids[0], None],
                    *[[x, t, None] for t, x in zip(ids[1:], self.brain.score(ids), strict=True)],
                ]
                return {"output_ids": [], "meta_info": {"input_token_logprobs": told}}
            named = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
            found, logp, why = self.brain.complete(ids, {**settings, **{k: settings[v] for k, v in named.items()}})
            ended = {"type": "length", "length": len(found)} if why == "length" else {"type": why, "matched": found[-1]}
            meta = {
                "id": body["rid"],
                "finish_reason": ended,
                "output_token_logprobs": [[x, t, None] for t, x in zip(found, logp, strict=True)],
                "weight_versions": [{"version": self.label, "start": 0, "end": len(found)}],
            }
            if body.get("return_sampling_mask"):
                meta["output_token_sampling_logprobs"] = [x / 2 for x in logp]
            return {"text": "", "output_ids": found, "meta_info": meta}

    def at_model_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    def at_server_info(self, body: Any) -> Any:
        return self.facts

    def at_pause_generation(self, body: Any) -> Any:
        assert body == {"mode": "retract"}
        self.paused = True
        return {"status": "ok"}

    def at_continue_generation(self, body: Any) -> Any:
        with self.going:
            self.paused = False
            self.going.notify_all()
        return {"status": "ok"}

    def at_update_weight_version(self, body: Any) -> Any:
        assert body["abort_all_requests"] is False
        self.label = body["new_version"]
        return {"success": True}

    def at_begin_weight_update(self, body: Any) -> Any:
        if self.active:
            return 400, b'{"success": false, "message": "a weight-update session is already open; call end first"}'
        self.active = True
        return {"success": True, "message": "Success"}

    def at_end_weight_update(self, body: Any) -> Any:
        self.active = False
        return {"success": True, "message": "Success"}

    def at_update_weights_from_tensor(self, body: Any) -> Any:
        assert self.active
        assert body["load_format"] == "grouprl_sglang.load"
        for packed in body["serialized_named_tensors"]:
            ((_, message),) = pickle.loads(base64.b64decode(packed))
            told = json.loads(message.numpy().tobytes())
            if self.said == "loaded":
                self.brain.load(told)
            if self.said:
                with open(told["report"], "a") as report:
                    report.write(f"{self.said}\n")
        return {"success": True, "message": "Success"}

    def at_update_weights_from_disk(self, body: Any) -> Any:
        assert body["load_format"] == "auto"
        state = load_file(f"{body['model_path']}/model.safetensors")
        missing, unknown = self.brain.policy.model.load_state_dict(state, strict=False)
        assert set(missing) <= {"lm_head.weight"}, "all but what is tied"
        assert not unknown
        return {"success": True, "message": "Succeeded to update model weights."}

    def at_abort_request(self, body: Any) -> Any:
        self.aborted.append(body["rid"])
        return 200, b""
