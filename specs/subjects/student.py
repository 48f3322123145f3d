"""The adapter between the student's file and the specs: a complete example of what an implementer writes."""

import dataclasses

import torch

from specs.subject import Recipe, Sizes, Subject
from specs.subjects import student_transformer

SIZE_NAMES = [field.name for field in dataclasses.fields(Sizes) if field.name != "vocabulary"]


class Student(Subject):
    name = "student"
    library = student_transformer

    def build(self, sizes):
        return self.library.Transformer(**dataclasses.asdict(sizes))

    def parameter_count(self, sizes):
        with torch.device("meta"):
            return self.library.count_parameters(self.build(sizes))

    def embed(self, model, tokens, stack):
        return (model.source if stack == "encoder" else model.target)(tokens)

    def embeddings(self, model):
        return model.source.table, model.target.table, model.projection

    def encode(self, model, source):
        return model.encode(source)

    def decode(self, model, states, source, target_in):
        return model.decode(states, source, target_in)

    def logits(self, model, source, target_in):
        return model(source, target_in)

    def step_logits(self, model, source, target_in):
        states, cache = model.encode(source), {}
        steps = [model.decode_step(states, source, token[:, None], cache) for token in target_in.unbind(1)]
        return model.project(torch.cat(steps, dim=1))

    def probabilities(self, model, source, target_in):
        return torch.softmax(model(source, target_in), dim=-1)

    def shift_right(self, targets):
        return self.library.shift_right(targets)

    def attention_maps(self, model, source, target_in):
        model(source, target_in)
        return {
            "encoder": [layer.attention.weights for layer in model.encoder],
            "decoder": [layer.attention.weights for layer in model.decoder],
            "cross": [layer.cross.weights for layer in model.decoder],
        }

    def layers(self, model, stack):
        return list(model.encoder if stack == "encoder" else model.decoder)

    def encoder_layer(self, layer, x):
        return layer(x)

    def decoder_layer(self, layer, y, states):
        return layer(y, states)

    def sublayer(self, layer, kind, x, states=None):
        if kind == "feed-forward":
            return layer.feed_forward(x)
        if kind == "cross":
            return layer.cross(x, states)
        return layer.attention(x, x, self.library.causal(x.size(1), x.size(1)) if kind == "masked" else None)

    def norms(self, layer):
        return list(layer.norms)

    def projections(self, layer, kind):
        block = layer.cross if kind == "cross" else layer.attention
        parts = dict(Q=block.query, K=block.key, V=block.value, O=block.output)
        return {f"W_{x}": part.weight.T for x, part in parts.items()} | {f"b_{x}": p.bias for x, p in parts.items()}

    def feed_forward_weights(self, layer):
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        return dict(W_1=inner.weight.T, b_1=inner.bias, W_2=outer.weight.T, b_2=outer.bias)

    def attention(self, query, key, value, allowed=None):
        return self.library.attention(query, key, value, allowed)

    def attention_weights(self, query, key, allowed=None):
        return self.library.attention_weights(query, key, allowed)

    def positions(self, length, d_model):
        return self.library.sinusoids(length, d_model)

    def recipe(self, name):
        row = self.library.row(name)
        return Recipe(
            sizes=Sizes(**{key: row[key] for key in SIZE_NAMES}),
            tied=row["tied"], optimizer=row["optimizer"], follows_eq_3=row["eq_3"], warmup=row["warmup"],
            betas=row["betas"], epsilon=row["eps"], clip_norm=row["clip_norm"],
            weight_decay=row["weight_decay"], smoothing=row["smoothing"], attention_dropout=row["other_dropout"],
            activation_dropout=row["other_dropout"], updates=row["updates"], tokens_per_update=row["tokens"],
            beam=row["beam"], alpha=row["alpha"], extra_length=row["extra"],
        )  # fmt: skip

    def optimizer(self, parameters):
        return self.library.make_optimizer(parameters)

    def learning_rates(self, d_model, updates):
        model, rates = torch.nn.Linear(1, 1), []
        for update in updates:
            training = self.library.Training(model, d_model, update=update - 1)
            training.optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
            training.step(model(torch.ones(1)).sum())
        return rates

    def loss(self, logits, targets, smoothing):
        return self.library.smoothed_loss(logits, targets, smoothing)

    def batches(self, lengths, tokens):
        return self.library.batches(lengths, tokens)

    def score(self, log_probability, length, alpha):
        return self.library.score(log_probability, length, alpha)

    def length_limit(self, source_words, extra=50):
        return self.library.length_limit(source_words, extra)

    def translate(self, model, source, beam, alpha):
        return self.library.translate(model, source, beam, alpha)

    def average(self, states):
        return self.library.average(states)
