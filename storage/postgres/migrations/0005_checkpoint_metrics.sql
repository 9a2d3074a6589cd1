-- What evaluation said of a checkpoint's step, so that the best one can be told from the newest.

ALTER TABLE checkpoints ADD COLUMN metrics jsonb NOT NULL DEFAULT '{}';
