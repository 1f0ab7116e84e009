"""Two seconds of music with known notes, and speech in the pieces that the voice detector takes."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.sources import SHARED_DATA, Split
from benchmarks.text_inputs import stream
from edgefuse.errors import InputError

__all__ = ["Note", "music", "read_sound", "speech_pieces"]

Array = np.ndarray[Any, np.dtype[Any]]
MUSIC_RATE = 22050
MUSIC_SAMPLES = 43844
SPEECH_RATE = 16000
SPEECH = {"calibration": "marvin.wav", "evaluation": "short_wav_easy10s.wav"}
PIECE, BEFORE = 512, 64


class Note(NamedTuple):
    """A note: when it begins in seconds, and its MIDI pitch."""

    onset: float
    pitch: int


def music(split: Split, index: int) -> tuple[Array, list[Note]]:
    """Return float32 [43844, 1] of 22.05 kHz sound in -1..1, and the notes in it.

    One in six is speech (other words in each split), without known notes: the list is empty.
    """
    rng = stream("music", split, index)
    if index % 6 == 5 and (SHARED_DATA / SPEECH[split]).is_file():
        return _spoken(split, rng), []
    seconds = MUSIC_SAMPLES / MUSIC_RATE
    sound = rng.normal(0.0, rng.uniform(0.0002, 0.003), MUSIC_SAMPLES)
    notes: list[Note] = []
    decay, brightness = rng.uniform(0.0, 3.0), rng.uniform(1.0, 2.2)
    onset = rng.uniform(0.05, 0.25)
    while onset < seconds - 0.35:
        root = int(rng.integers(45, 78))
        chord = _chord(rng)
        length = float(rng.uniform(0.3, 0.8))
        for step in chord:
            sound += _tone(rng, root + step, onset, length, decay, brightness)
            notes.append(Note(onset, root + step))
        onset += length * rng.uniform(0.75, 1.1)
    sound *= rng.uniform(0.2, 0.8) / max(float(np.abs(sound).max()), 1e-9)
    return sound.astype(np.float32)[:, None], notes


def _chord(rng: np.random.Generator) -> tuple[int, ...]:
    chords = ((0,), (0,), (0, 4, 7), (0, 3, 7), (0, 7), (0, 12), (0, 5, 9), (0, 4, 7, 11))
    return chords[int(rng.integers(len(chords)))]


def _tone(
    rng: np.random.Generator, pitch: int, onset: float, length: float, decay: float, brightness: float
) -> Array:
    """Return one note: harmonics that fall by 1/k^brightness, an attack of 10 ms, decay and release."""
    time = np.arange(MUSIC_SAMPLES) / MUSIC_RATE - onset
    frequency = 440.0 * 2.0 ** ((pitch - 69) / 12.0)
    vibrato = rng.uniform(0.0, 0.15) * np.sin(2 * np.pi * rng.uniform(4.0, 6.5) * time)
    phase = 2 * np.pi * frequency * time + vibrato * frequency / 40.0
    tone = np.zeros(MUSIC_SAMPLES)
    for harmonic in range(1, 13):
        if harmonic * frequency > 0.45 * MUSIC_RATE:
            break
        tone += rng.uniform(0.6, 1.0) / harmonic**brightness * np.sin(harmonic * phase + rng.uniform(0, 6.28))
    rise = np.clip(time / 0.01, 0.0, 1.0)
    fall = np.clip((length - time) / 0.04, 0.0, 1.0)
    shape: Array = rise * fall * np.exp(-decay * np.clip(time, 0.0, None))
    result: Array = tone * shape * rng.uniform(0.5, 1.0)
    return result


def read_sound(path: Path) -> Array:
    """Return float32 [samples] in -1..1 of a 16-bit 16 kHz wave file; the first channel of several.

    Raises InputError where the file is not there or is of another kind.
    """
    try:
        with wave.open(str(path)) as file:
            kind = (file.getframerate(), file.getsampwidth())
            frames = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            channels = file.getnchannels()
    except (OSError, wave.Error) as error:
        raise InputError(
            f"{path} cannot be read as sound: {error}", hint="it lies in ../shared/data"
        ) from error
    if kind != (SPEECH_RATE, 2):
        raise InputError(
            f"{path} is other sound", "16 kHz, 2 bytes a sample", f"{kind[0]} Hz, {kind[1]} bytes"
        )
    sound: Array = (frames.reshape(-1, channels)[:, 0] / 32768.0).astype(np.float32)
    return sound


def _at_speed(sound: Array, speed: float) -> Array:
    places = np.arange(0.0, len(sound) - 1, speed)
    slower: Array = np.interp(places, np.arange(len(sound)), sound)
    return slower


def _spoken(split: Split, rng: np.random.Generator) -> Array:
    sound = _at_speed(
        read_sound(SHARED_DATA / SPEECH[split]), SPEECH_RATE / MUSIC_RATE * rng.uniform(0.9, 1.1)
    )
    start = int(rng.integers(0, max(1, len(sound) - MUSIC_SAMPLES)))
    part = sound[start : start + MUSIC_SAMPLES]
    part = np.pad(part, (0, MUSIC_SAMPLES - len(part)))
    return part.astype(np.float32)[:, None]


def speech_pieces(split: Split, count: int) -> list[list[Array]]:
    """Return clips, each a list of float32 [576] pieces: 64 samples heard before, 512 new; `count` in all.

    The first clip is the recording itself; the others are it louder or softer, faster or slower, in noise.
    """
    recording = read_sound(SHARED_DATA / SPEECH[split])
    clips: list[list[Array]] = []
    left = count
    while left > 0:
        rng = stream("speech", split, len(clips))
        sound = recording if not clips else _varied(recording, rng)
        sound = np.concatenate([np.zeros(BEFORE, np.float32), sound])
        starts = range(0, len(sound) - PIECE - BEFORE + 1, PIECE)
        clips.append([sound[s : s + BEFORE + PIECE] for s in starts][:left])
        left -= len(clips[-1])
    return clips


def _varied(sound: Array, rng: np.random.Generator) -> Array:
    varied = _at_speed(sound, rng.uniform(0.85, 1.2)) * rng.uniform(0.3, 1.6)
    varied = varied + rng.normal(0.0, 10 ** rng.uniform(-3.5, -1.7), len(varied))
    clipped: Array = np.clip(varied, -1.0, 1.0).astype(np.float32)
    return clipped
