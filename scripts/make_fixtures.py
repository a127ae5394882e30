#!/usr/bin/env python3
"""Writes the fixtures of tests/oracle: tiny models of Hugging Face transformers, run once.

Each fixture holds a model's weights, an input, and what transformers makes of it in fp32: outputs, the
sum of losses, and every gradient. The tests compare the oracle and the engine with it. That of a layer
of a real size holds outputs and projections of gradients alone.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 numpy transformers
    venv/bin/python scripts/make_fixtures.py tests/oracle/fixtures [FIXTURE.bin ...]

A fixture is a text header, one line a tensor: "name type dim dim ...", an empty line, then the
tensors' bytes in that order, row-major and little-endian. Types: f32, i64.
"""

import pathlib
import sys

import numpy
import torch
from transformers import (
    CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM, SiglipVisionConfig, SiglipVisionModel,
    WhisperConfig,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder

TYPES = {torch.float32: "f32", torch.int64: "i64"}


def write(path, tensors):
    lines = []
    for name, tensor in tensors.items():
        lines.append(" ".join([name, TYPES[tensor.dtype], *map(str, tensor.shape)]))
    with open(path, "wb") as file:
        file.write(("\n".join(lines) + "\n\n").encode())
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().numpy().tobytes())
    print(f"{path}: {path.stat().st_size} bytes, {len(tensors)} tensors")


def randomise(model, generator):
    """Values far from their defaults, so that a norm's weight or a bias left out is seen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * values if is_norm else 0.25 * values)


def with_gradients(model, tensors, prefix="", left_out=None):
    for name, parameter in model.named_parameters():
        if left_out is not None and left_out in name:
            continue
        name = name if name.startswith(prefix) else prefix + name
        tensors["weight/" + name] = parameter
        tensors["gradient/" + name] = parameter.grad
    return tensors


def llama(path, tied, seed):
    generator = torch.Generator().manual_seed(seed)
    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, vocab_size=32, max_position_embeddings=16, rms_norm_eps=1e-5,
        tie_word_embeddings=tied, attention_bias=False, mlp_bias=False, hidden_act="silu",
    )
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).float()
    randomise(model, generator)
    tokens = torch.randint(config.vocab_size, (2, 9), generator=generator)
    labels = torch.randint(config.vocab_size, (2, 9), generator=generator)
    weights = (torch.rand((2, 9), generator=generator) < 0.7).float()
    logits = model(input_ids=tokens).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    loss = (losses * weights.flatten()).sum()
    loss.backward()
    write(path, with_gradients(model, {
        "tokens": tokens, "labels": labels, "label_weights": weights, "logits": logits,
        "loss": loss.reshape(1),
    }))


def clip_vision(path, seed):
    generator = torch.Generator().manual_seed(seed)
    config = CLIPVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        image_size=8, patch_size=4, layer_norm_eps=1e-5, hidden_act="quick_gelu",
    )
    config._attn_implementation = "eager"
    model = CLIPVisionModel(config).float()
    randomise(model, generator)
    pixels = torch.randn((3, 3, 8, 8), generator=generator)
    features = model(pixel_values=pixels).last_hidden_state[:, 1:]
    upstream = torch.randn(features.shape, generator=generator)
    features.backward(upstream)
    # The norm behind the pooled class token takes no part in the features.
    write(path, with_gradients(model, {
        "pixels": pixels, "features": features, "features_gradient": upstream,
    }, prefix="vision_model.", left_out="post_layernorm"))


def stream_of(name):
    """FNV-1a, as in core/base/prng.h."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def unit_normal(name, shape):
    """UnitNormal(Mix64(StreamOf(name) ^ index)) of core/base/prng.h, rounded to fp32."""
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(stream_of(name)) ^ numpy.arange(numpy.prod(shape), dtype=numpy.uint64)
        x += numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        x ^= x >> numpy.uint64(31)
    halves = sum(((x >> numpy.uint64(16 * i)) & numpy.uint64(0xFFFF)).astype(numpy.int64) for i in range(4))
    values = (halves - 2 * 65535) * (1 / 37837.22644777)
    return torch.from_numpy(values.astype(numpy.float32)).reshape(*shape)


def siglip_vision_real(path):
    """One layer as large as those of the so400m: the test makes the same weights, pixels and upstream
    gradients from their names, and the fixture holds each matrix' gradient times a vector."""
    config = SiglipVisionConfig(
        hidden_size=1152, num_hidden_layers=1, num_attention_heads=16, intermediate_size=4304,
        image_size=28, patch_size=14, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh", vision_use_head=False,
    )
    config._attn_implementation = "eager"
    model = SiglipVisionModel(config).float()
    names = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            names[name] = name if name.startswith("vision_model.") else "vision_model." + name
            values = unit_normal(names[name], parameter.shape)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.25 * values if is_norm else 0.03125 * values)
    features = model(pixel_values=unit_normal("pixels", (1, 3, 28, 28))).last_hidden_state
    features.backward(unit_normal("features_gradient", features.shape))
    tensors = {"features": features}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient.dim() > 1:
            gradient = gradient.flatten(1)
            gradient = gradient @ unit_normal("product/" + names[name], gradient.shape[1:])
        tensors["gradient/" + names[name]] = gradient
    write(path, tensors)


def siglip_vision(path, seed):
    generator = torch.Generator().manual_seed(seed)
    config = SiglipVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=27,
        image_size=8, patch_size=4, layer_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh", vision_use_head=False,
    )
    config._attn_implementation = "eager"
    model = SiglipVisionModel(config).float()
    randomise(model, generator)
    pixels = torch.randn((3, 3, 8, 8), generator=generator)
    features = model(pixel_values=pixels).last_hidden_state
    upstream = torch.randn(features.shape, generator=generator)
    features.backward(upstream)
    write(path, with_gradients(model, {
        "pixels": pixels, "features": features, "features_gradient": upstream,
    }, prefix="vision_model."))


def whisper(path, seed):
    generator = torch.Generator().manual_seed(seed)
    frames = 12
    config = WhisperConfig(
        d_model=16, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=24, num_mel_bins=5,
        max_source_positions=frames // 2, activation_function="gelu", dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, encoder_layerdrop=0.0, scale_embedding=False,
    )
    config._attn_implementation = "eager"
    model = WhisperEncoder(config).float()
    positions = model.embed_positions.weight.detach().clone()
    randomise(model, generator)
    with torch.no_grad():
        model.embed_positions.weight.copy_(positions)  # fixed, not a parameter
    sounds = torch.randn((3, config.num_mel_bins, frames), generator=generator)
    features = model(sounds).last_hidden_state
    upstream = torch.randn(features.shape, generator=generator)
    features.backward(upstream)
    write(path, with_gradients(model, {
        "sounds": sounds, "features": features, "features_gradient": upstream,
    }, prefix="model.encoder.", left_out="embed_positions"))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/oracle/fixtures")
    folder.mkdir(parents=True, exist_ok=True)
    fixtures = {
        "llama.bin": lambda path: llama(path, tied=False, seed=1),
        "llama_tied.bin": lambda path: llama(path, tied=True, seed=2),
        "clip_vision.bin": lambda path: clip_vision(path, seed=3),
        "whisper.bin": lambda path: whisper(path, seed=4),
        "siglip_vision.bin": lambda path: siglip_vision(path, seed=5),
        "siglip_vision_real.bin": siglip_vision_real,
    }
    for name in sys.argv[2:] or fixtures:
        fixtures[name](folder / name)


if __name__ == "__main__":
    main()
