-- The scheduler's leader: one row. Every write of the leader locks it and compares the epoch, so that a
-- leader that was paused for too long changes nothing any more.

CREATE TABLE leader (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  holder text NOT NULL,  -- empty: nobody
  epoch bigint NOT NULL,
  lease_end timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO leader (holder, epoch, lease_end) VALUES ('', 0, '-infinity');
