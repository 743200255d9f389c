#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""train_recall (examples/train_recall) in PyTorch: a small causal model recalls the latest value that was
written under a key, in sequences of growing length.

    python train_recall.py [tokens ...]       # 128 256 512 1024; three minutes"""
import math
import sys

import torch
from mhla_torch.nn import LanguageAttention
from torch import nn
from torch.nn import functional

VALUES, KEYS, WIDTH, STEPS, RATE = 16, 16, 64, 600, 0.01


class Layer(nn.Module):
    def __init__(self, tokens, block=32, hidden=176):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.attn = LanguageAttention(WIDTH, heads=2, expand_k=1.0, block=block, blocks=-(-tokens // block),
                                      feature_map="elu", rotation=None)
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in (
            (WIDTH, hidden), (WIDTH, hidden), (hidden, WIDTH)))

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.symbols, self.keys, self.places = (nn.Embedding(n, WIDTH) for n in (VALUES + 1, KEYS, tokens))
        self.layers = nn.ModuleList(Layer(tokens) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VALUES)

    def forward(self, symbols, keys):
        x = self.symbols(symbols) + self.keys(keys) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))[:, 1::2]  # at the queries


def examples(count, tokens):
    """Symbols and keys [count, tokens], and what is right at every query [count, tokens / 2]."""
    written, values = torch.randint(KEYS, (count, tokens // 2)), torch.randint(VALUES, (count, tokens // 2))
    asked = written.gather(1, (torch.rand(written.shape) * torch.arange(1, tokens // 2 + 1)).long())
    writes = torch.arange(tokens // 2)
    latest = torch.where((asked[:, :, None] == written[:, None]) & (writes[:, None] >= writes), writes, -1).amax(-1)
    symbols = torch.stack((values, torch.full_like(values, VALUES)), -1).flatten(1)
    return symbols, torch.stack((written, asked), -1).flatten(1), values.gather(1, latest)


def rate(step):
    """Of the largest: up within a twentieth of the steps, then down along a cosine."""
    done = (step + 1) / STEPS
    return done / 0.05 if done < 0.05 else max((1 + math.cos(math.pi * (done - 0.05) / 0.95)) / 2, 0.02)


def main():
    for tokens in map(int, sys.argv[1:] or (128, 256, 512, 1024)):
        torch.manual_seed(1)
        model, batch = Model(tokens), 16 * 128 // tokens
        for table in (model.symbols, model.keys, model.places):
            nn.init.normal_(table.weight, std=WIDTH ** -0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        for _ in range(STEPS):
            symbols, keys, right = examples(batch, tokens)
            loss = functional.cross_entropy(model(symbols, keys).flatten(0, 1), right.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            for layer in model.layers:
                layer.attn.project()
        symbols, keys, right = examples(2 * 8192 // tokens, tokens)
        with torch.no_grad():
            accuracy = (model(symbols, keys).argmax(-1) == right).float().mean()
        print(f"{tokens:5} tokens: {100 * accuracy:.1f} % right", flush=True)


if __name__ == "__main__":
    main()
