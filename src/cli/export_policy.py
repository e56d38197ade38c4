"""Makes a policy that any program can load from a safetensors file of rankdeck's: python export_policy.py IN OUT torchscript|onnx

The program gets observations `[batch, ...]` as the environment gives them and returns the actions that evaluations take:
integers `[batch]` or, of several parts, `[batch, parts]`, or numbers `[batch, n]`. With `env.action_masks` it also gets the masks
`[batch, choices]`, bytes, 0 where a choice is not allowed. With `policy.memory` it also gets the states `[batch, size]` that it returned
last, 0 at the first step of an episode, and returns actions and states. The trainer's normalization is included. Needs PyTorch; ONNX also
`onnx`.
"""
import json, math, struct, sys

import torch
from torch import nn
from torch.nn import functional as F


def load(path):
    """The description and the tensors, by their names, in their order."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    meta, kinds = header.pop("__metadata__"), {"F32": torch.float32, "F64": torch.float64}
    places = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    tensors = {}
    for name, at in places:
        begin, end = at["data_offsets"]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=kinds[at["dtype"]]).reshape(at["shape"]) if end > begin else torch.zeros(at["shape"])
    return meta, tensors


class Policy(nn.Module):
    """The greedy policy of PPO, PPG, A2C, DQN, SAC, TD3 or PQN."""

    def __init__(self, path):
        super().__init__()
        self.meta, tensors = load(path)
        meta = self.meta
        if not meta.get("format", "").startswith("rankdeck"):
            raise SystemExit("%s was not written by rankdeck" % path)
        self.algorithm, self.network, self.actions = meta["algorithm"], meta["network"], json.loads(meta["actions"])
        self.shape = json.loads(meta["observation_shape"])
        self.masked = json.loads(meta["experiment"])["env"].get("action_masks", False)
        self.memory = meta.get("memory")
        self.branches = json.loads(meta.get("branches", "[]"))
        self.pixels = meta["observation_type"] == "u8"
        self.scale, self.clip = float(meta["observation_scale"]), float(meta["observation_clip"])
        self.normalised = "observations.mean" in tensors
        if self.normalised:
            self.register_buffer("mean", tensors.pop("observations.mean"))
            self.register_buffer("deviation", torch.sqrt(tensors.pop("observations.var") + float(meta["observation_epsilon"])))
        self.relu = self.network != "mlp" or meta["activation"] == "relu"
        self.names = list(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", "_"), tensor)
        if "low" in self.actions:
            for bound, missing in (("low", float("-inf")), ("high", float("inf"))):
                values = [missing if value is None else value for value in self.actions[bound]]
                self.register_buffer(bound, torch.tensor(values, dtype=torch.float32))

    def layers(self, prefix, sides):
        """Weights and biases below a name, of layers with this number of dimensions."""
        names = [name[:-7] for name in self.names if name.startswith(prefix) and name.endswith(".weight")]
        pairs = [tuple(getattr(self, (name + part).replace(".", "_")) for part in (".weight", ".bias")) for name in names]
        return [pair for pair in pairs if pair[0].dim() == sides]

    def activate(self, x):
        return F.relu(x) if self.relu else torch.tanh(x)

    def dense(self, x, layers, linear_end=True, norms=()):
        for i, (weight, bias) in enumerate(layers):
            x = F.linear(x, weight, bias)
            if i < len(norms):
                x = self.layer_norm(x, norms[i])
            x = x if linear_end and i + 1 == len(layers) else self.activate(x)
        return x

    def layer_norm(self, x, pair):
        return F.layer_norm(x, list(pair[0].shape), *pair)

    def best(self, scores, masks):
        """The best of the actions that are allowed."""
        return (scores if masks is None else scores.masked_fill(masks == 0, float("-inf"))).argmax(1)

    def squash(self, x):
        """Numbers to actions within their bounds."""
        return torch.tanh(x) * ((self.high - self.low) / 2) + (self.high + self.low) / 2

    def convolve(self, x):
        """Images to numbers."""
        if len(self.shape) == 2:
            x = x.unsqueeze(1)
        return self.features(x.float() / 255.0 if self.pixels else x.float(), self.layers("network.", 4), self.layers("network.", 3))

    def join(self, x):
        """Flat Dict observations to the features of their images and other values."""
        x, parts, others, start = x.flatten(1), [], [], 0
        for branch in self.branches:
            shape = branch["shape"]
            end = start + math.prod(shape)
            part = x[:, start:end].float()
            start = end
            if branch["image"]:
                image = part.reshape(-1, *shape) / (255.0 if branch["bytes"] else 1.0)
                image = image.permute(0, 3, 1, 2) if branch["last"] else image
                parts.append(self.features(image, self.layers("network.%s." % branch["key"], 4)))
            else:
                others.append(part / (255.0 if self.pixels else 1.0))
        if others:
            parts.append(self.dense(torch.cat(others, 1), self.layers("network.vector.", 2), linear_end=False))
        return torch.cat(parts, 1)

    def features(self, x, layers, norms=()):
        """Images from 0 to 1 through convolutions."""
        if self.network == "nature":
            for i, ((weight, bias), stride) in enumerate(zip(layers, (4, 2, 1))):
                x = F.conv2d(x, weight, bias, stride)
                x = F.relu(self.layer_norm(x, norms[i]) if norms else x)
            return x.flatten(1)
        for i in range(0, len(layers), 5):
            first, *blocks = layers[i:i + 5]
            x = F.max_pool2d(F.conv2d(x, *first, padding=1), 3, 2, 1)
            for one, two in (blocks[:2], blocks[2:]):
                x = x + F.conv2d(F.relu(F.conv2d(F.relu(x), *one, padding=1)), *two, padding=1)
        return F.relu(x.flatten(1))

    def remember(self, x, states):
        """Outputs of the memory and its states after them."""
        own = [getattr(self, name.replace(".", "_")) for name in self.names if name.startswith(self.memory + ".")]
        if self.memory == "lstm":
            weight, recurrent, bias, other = own
            output, cell = states.chunk(2, 1)
            take, keep, new, show = (F.linear(x, weight, bias) + F.linear(output, recurrent, other)).chunk(4, 1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(take) * torch.tanh(new)
            output = torch.sigmoid(show) * torch.tanh(cell)
            return output, torch.cat([output, cell], 1)
        update = torch.sigmoid(F.linear(x, *own[:2]))
        states = (1 - update) * states + update * F.linear(x, *own[2:])
        return states, states

    def forward(self, observations, *others):
        others = list(others)
        masks = others.pop(0) if self.masked else None
        images = self.network != "mlp"
        if self.branches:
            x = self.join(observations)
        elif images:
            x = self.convolve(observations)
        else:
            x = observations.flatten(1).float() * self.scale
        if self.normalised:
            x = ((x.double() - self.mean) / self.deviation).clamp(-self.clip, self.clip).float()
        shared = self.layers("network.shared." if self.branches else "network.", 2)
        if self.algorithm == "dqn":
            advantages = self.layers("advantage.", 2)
            if not advantages:
                return self.best(self.dense(x, shared), masks)
            # Behind convolutions, the last shared layer is linear.
            return self.best(self.dense(self.dense(x, shared, linear_end=images), advantages), masks)
        if self.algorithm == "pqn":
            return self.best(self.dense(x, shared, norms=self.layers("network.", 1)), masks)
        if self.algorithm == "sac":
            hidden = self.dense(x, self.layers("actor.fc", 2)[:-2], linear_end=False)
            mean = F.linear(hidden, *self.layers("actor.fc_mean", 2)[0])
            return self.squash(mean)
        if self.algorithm == "td3":
            return self.squash(self.dense(x, self.layers("actor.", 2)))
        x = self.dense(x, shared, linear_end=False)
        if self.memory is None:
            return self.act(x, masks)
        x, states = self.remember(x, others.pop(0))
        return self.act(x, masks), states

    def act(self, x, masks):
        """Features to the most probable actions."""
        if "low" not in self.actions:
            scores = self.dense(x, self.layers("actor.", 2))
            if masks is not None:
                scores = scores.masked_fill(masks == 0, float("-inf"))
            if "n" in self.actions:
                return scores.argmax(1)
            return torch.stack([part.argmax(1) for part in scores.split(self.actions["sizes"], 1)], 1)
        return torch.minimum(torch.maximum(self.dense(x, self.layers("actor_mean", 2)), self.low), self.high)

    def example(self, rows=2):
        """Observations, and masks and states where there are any, of the right shape and type, by their names."""
        kind = torch.uint8 if self.pixels else torch.float32
        inputs = {"observations": torch.zeros([rows, *self.shape], dtype=kind)}
        if self.masked:
            inputs["masks"] = torch.ones([rows, self.actions.get("n") or sum(self.actions["sizes"])], dtype=torch.uint8)
        if self.memory is not None:
            last = next(name for name in reversed(self.names) if name.startswith(self.memory + "."))
            size = getattr(self, last.replace(".", "_")).shape[0]
            # Four gates have a bias, and the state has an output and a cell.
            inputs["states"] = torch.zeros([rows, size // 2 if self.memory == "lstm" else size])
        return inputs


def main(source, target, format):
    policy = Policy(source).eval()
    inputs = policy.example()
    names, example = list(inputs), tuple(inputs.values())
    with torch.no_grad():
        if format == "torchscript":
            traced = torch.jit.trace(policy, example)
            torch.jit.save(traced, target, _extra_files={"metadata.json": json.dumps(policy.meta).encode()})
            return
        try:
            import onnx
        except ImportError:
            raise SystemExit("%s has no package onnx\nhint: %s -m pip install onnx" % (sys.executable, sys.executable))
        # What goes in as states comes out as `next_states`: names are unique.
        outputs = ["actions", *(["next_states"] if policy.memory else [])]
        torch.onnx.export(policy, example, target, dynamo=False, opset_version=17, input_names=names, output_names=outputs,
                          dynamic_axes={name: {0: "batch"} for name in [*names, *outputs]})
        model = onnx.load(target)
        for name, text in policy.meta.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = name, text
        onnx.save(model, target)


if __name__ == "__main__":
    main(*sys.argv[1:4])
