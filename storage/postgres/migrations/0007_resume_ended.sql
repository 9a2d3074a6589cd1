-- A job that failed or was cancelled may go on from its newest checkpoint: what it computed is kept, and whoever
-- mended the cause (a full disk, broken data) need not train again.

INSERT INTO job_transitions (from_state, trigger, to_state) VALUES
  ('FAILED', 'RESUME', 'QUEUED'),
  ('CANCELLED', 'RESUME', 'QUEUED');
