"""Job files of the two models that speed is measured with, in any layout: a decoder with a ViT-L, sequence 4096, four
336-pixel images a sample, whose shards (examples/make_synthetic.py) lie beside the file. The other 7 of 16 positions have labels."""

ITEMS = 4  # images of a sample

DECODERS = {
    "1p6b": "hidden_size: 2048, layers: 18, heads: 32, kv_heads: 8, mlp_size: 8192",
    "5b": "hidden_size: 4096, layers: 18, heads: 32, kv_heads: 8, mlp_size: 14336",
}
HIDDEN = {"1p6b": 2048, "5b": 4096}

JOB = """apiVersion: phalanx/v1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  seed: 17
  steps: {steps}
  precision: {{compute: bf16, linear: {linear}}}
  modules:
    - name: vision
      architecture: {{family: clip_vision, hidden_size: 1024, layers: 24, heads: 16, mlp_size: 4096, image_size: 336, patch_size: 14}}
      parallel: {vision}
{encoder}    - name: language
      architecture: {{family: llama, {decoder}, vocabulary: 128256, context: 4096, rope_theta: 500000}}
      parallel: {language}
{more}  edges:
    - {{from: vision, to: language, projector: {{type: mlp, hidden_size: {hidden}}}}}
  batch: {{global: {batch}, micro: {micro}, labelled_share: 0.4375}}
  schedule: {schedule}
  data: {{format: webdataset, shards: "synthetic-{{000..003}}.tar", tokenizer: synthetic.model, items_max: {items}}}
  optimizer: {{name: adamw, learning_rate: 3e-4, warmup_steps: 5, clip_norm: 1.0}}
  recovery: {recovery}
  resources: {{device: gpu, devices: {devices}}}
  output: runs/{name}
"""


def job(name, devices, model, language, vision, *, together=True, batch, micro, schedule="{name: 1f1b}", linear="compute",
        recovery="{}", recompute=None, encoder_recompute=None, steps=16):
    """The text of a job. `together`: both modules begin on the same rank. `recompute`: of the decoder."""
    more = ""
    if together:
        more += "      offset: vision\n"
    if recompute:
        more += f"      recompute: {recompute}\n"
    encoder = f"      recompute: {encoder_recompute}\n" if encoder_recompute else ""
    return JOB.format(encoder=encoder, items=ITEMS, name=name, devices=devices, decoder=DECODERS[model], hidden=HIDDEN[model], language=language, vision=vision,
                      more=more, batch=batch, micro=micro, schedule=schedule, linear=linear, recovery=recovery, steps=steps)
