"""Checkpoints that are whole or not there, and that a run continues from as if it had never stopped.

state       what Covey adds to a checkpoint of transformers.Trainer
manifest    what was written, so that a damaged checkpoint is recognised
folders     moving into place, rotation, tidying up after a kill
faults      full disks and the like
saving      the Trainer's hooks that write a checkpoint
choosing    which checkpoint a run goes on from
timing      a checkpoint holds all that its step logs
"""
