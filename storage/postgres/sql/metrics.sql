-- Metrics in heads and chunks (migrations/0010_metric_chunks.sql). $1 is the job's uid, or those of several jobs.

-- name: PutMetricHeads
-- A head of each job, unless the job's heads would then hold $9 points: then nothing of it is written and its row does
-- not come back.
INSERT INTO metric_heads (month, job_uid, first_sequence, last_sequence, attempt, first_step, last_step, points,
                          pending, bytes)
SELECT n.month, n.uid, n.first_sequence, n.last_sequence, n.attempt, n.first_step, n.last_step, n.points, n.pending,
       n.bytes::bytea
FROM (SELECT w.*, w.points + coalesce((
               SELECT h.pending FROM metric_heads h WHERE h.month = w.month AND h.job_uid = w.uid
               ORDER BY h.first_sequence DESC LIMIT 1), 0) AS pending
      FROM (SELECT p.*, month_of(s.create_time) AS month
            FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                        $7::integer[], $8::text[])
                   AS p (uid, first_sequence, last_sequence, attempt, first_step, last_step, points, bytes)
              CROSS JOIN LATERAL (SELECT create_time FROM job_specs WHERE job_uid = p.uid OFFSET 0) s) w
      OFFSET 0) n  -- looked up once, for the condition and for the row
WHERE n.pending < $9::integer
RETURNING job_uid

-- name: PendingPoints
SELECT h.pending FROM metric_heads h WHERE h.month = {month_of_job} AND h.job_uid = $1
ORDER BY h.first_sequence DESC LIMIT 1

-- name: TakeMetricHeads
DELETE FROM metric_heads WHERE month = {month_of_job} AND job_uid = $1 RETURNING first_sequence, bytes

-- name: PutMetricChunks
INSERT INTO metric_chunks (month, job_uid, level, first_sequence, split, name, last_sequence, attempt, first_step,
                           last_step, points, bytes)
SELECT {month_of_job}, $1, c.level, c.first_sequence, c.split, c.name, c.last_sequence, c.attempt, c.first_step,
       c.last_step, c.points, c.bytes::bytea
FROM unnest($2::smallint[], $3::bigint[], $4::smallint[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::integer[], $11::text[])
  AS c (level, first_sequence, split, name, last_sequence, attempt, first_step, last_step, points, bytes)

-- name: CountUnrolled
SELECT count(DISTINCT c.first_sequence) FROM metric_chunks c
WHERE c.month = {month_of_job} AND c.job_uid = $1 AND c.level = $2::smallint AND c.first_sequence > coalesce((
  SELECT u.last_sequence FROM metric_chunks u
  WHERE u.month = {month_of_job} AND u.job_uid = $1 AND u.level = $2::smallint + 1
  ORDER BY u.first_sequence DESC LIMIT 1), 0)

-- name: ReadRollUps
-- What makes up level $2: its own chunks, and of each level below what the one above it does not hold yet.
SELECT c.level, c.first_sequence, c.last_sequence, c.split, c.name, c.attempt, c.first_step, c.last_step, c.points,
       c.bytes
FROM generate_series(1, $2::integer) AS l (level)
CROSS JOIN LATERAL (
  SELECT coalesce((SELECT u.last_sequence FROM metric_chunks u
                   WHERE u.month = {month_of_job} AND u.job_uid = $1 AND u.level = l.level + 1
                   ORDER BY u.first_sequence DESC LIMIT 1), 0) AS sequence) held
JOIN metric_chunks c ON c.month = {month_of_job} AND c.job_uid = $1 AND c.level = l.level
WHERE (l.level = $2::integer OR c.first_sequence > held.sequence) AND c.split = ANY ($3::smallint[])
  AND (cardinality($4::text[]) = 0 OR c.name = ANY ($4::text[]))
  AND c.last_step >= $5::bigint AND c.first_step <= $6::bigint
  AND NOT EXISTS (SELECT FROM attempts a WHERE a.job_uid = $1 AND a.attempt > c.attempt
                                           AND a.restore_step < c.first_step)
ORDER BY c.level, c.first_sequence, c.split, c.name

-- name: ReadChunks
-- Points within steps and sequences, of some names (none: all). The index comes first in each chunk.
SELECT c.first_sequence, c.last_sequence, c.split, c.name, c.attempt, c.first_step, c.last_step, c.points, c.bytes
FROM metric_chunks i
CROSS JOIN LATERAL (
  SELECT * FROM metric_chunks
  WHERE month = i.month AND job_uid = $1 AND level = 0 AND first_sequence = i.first_sequence OFFSET 0) c
WHERE i.month = {month_of_job} AND i.job_uid = $1 AND i.level = 0 AND i.split = -1
  AND i.last_step >= $2::bigint AND i.first_step <= $3::bigint
  AND i.first_sequence >= $4::bigint AND i.last_sequence <= $5::bigint
  AND (c.split = -1 OR cardinality($6::text[]) = 0 OR c.name = ANY ($6::text[]))
ORDER BY c.first_sequence, c.split, c.name

-- name: ReadNextChunks
-- The next few in the order of their first steps.
WITH next AS (
  SELECT i.first_step, i.first_sequence FROM metric_chunks i
  WHERE i.month = {month_of_job} AND i.job_uid = $1 AND i.level = 0 AND i.split = -1
    AND i.last_step >= $2::bigint AND i.first_step <= $3::bigint
    AND (i.first_step, i.first_sequence) > ($4::bigint, $5::bigint)
    AND ($6::boolean OR NOT EXISTS (SELECT FROM attempts a WHERE a.job_uid = $1 AND a.attempt > i.attempt
                                                             AND a.restore_step < i.first_step))
  ORDER BY i.first_step, i.first_sequence LIMIT $7::integer
)
SELECT c.first_sequence, c.last_sequence, c.split, c.name, c.attempt, c.first_step, c.last_step, c.points, c.bytes
FROM next n
CROSS JOIN LATERAL (
  SELECT * FROM metric_chunks
  WHERE month = {month_of_job} AND job_uid = $1 AND level = 0 AND first_sequence = n.first_sequence OFFSET 0) c
ORDER BY c.first_step, c.first_sequence, c.split, c.name

-- name: ReadIndexes
-- Of each job only which points there are, within steps: of chunks and of heads. Those past the cut are superseded.
SELECT w.place, b.points, b.bytes, b.chunk,
       (SELECT min(a.restore_step) FROM attempts a WHERE a.job_uid = w.uid AND a.attempt > b.attempt) AS cut
FROM (SELECT p.uid, p.from_step, p.to_step, p.place, month_of(s.create_time) AS month
      FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS p (uid, from_step, to_step, place)
        JOIN job_specs s ON s.job_uid = p.uid) AS w
CROSS JOIN LATERAL (
  SELECT i.attempt, i.points, i.bytes, true AS chunk FROM metric_chunks i
  WHERE i.month = w.month AND i.job_uid = w.uid AND i.level = 0 AND i.split = -1
    AND i.last_step >= w.from_step AND i.first_step <= w.to_step
  UNION ALL
  SELECT h.attempt, h.points, h.bytes, false FROM metric_heads h
  WHERE h.month = w.month AND h.job_uid = w.uid AND h.last_step >= w.from_step AND h.first_step <= w.to_step
) AS b

-- name: ReadHeads
SELECT h.bytes FROM metric_heads h
WHERE h.month = {month_of_job} AND h.job_uid = $1 AND h.last_step >= $2::bigint AND h.first_step <= $3::bigint
ORDER BY h.first_sequence

-- name: NewestPoint
SELECT greatest(
  (SELECT max(i.last_step) FROM metric_chunks i
   WHERE i.month = {month_of_job} AND i.job_uid = $1 AND i.split = -1),
  (SELECT max(h.last_step) FROM metric_heads h WHERE h.month = {month_of_job} AND h.job_uid = $1),
  (SELECT max(m.step) FROM metrics m WHERE m.job_uid = $1))

-- name: ReadCuts
-- Up to which step an attempt's points count: those past where a later one began are superseded.
SELECT a.attempt, (SELECT min(b.restore_step) FROM attempts b WHERE b.job_uid = $1 AND b.attempt > a.attempt)
FROM attempts a WHERE a.job_uid = $1

-- name: DeleteHeads
DELETE FROM metric_heads WHERE month = {month_of_job} AND job_uid = $1

-- name: DeleteChunks
-- Some, as many as one transaction should remove.
DELETE FROM metric_chunks WHERE month = {month_of_job} AND job_uid = $1 AND (level, first_sequence) <= (
  SELECT level, first_sequence FROM (
    SELECT DISTINCT c.level, c.first_sequence FROM metric_chunks c
    WHERE c.month = {month_of_job} AND c.job_uid = $1 ORDER BY c.level, c.first_sequence LIMIT $2) AS piece
  ORDER BY level DESC, first_sequence DESC LIMIT 1)

-- name: ReadUnrolled
-- Chunks of a level that none of the level above holds yet.
SELECT c.level, c.first_sequence, c.last_sequence, c.split, c.name, c.attempt, c.first_step, c.last_step, c.points,
       c.bytes
FROM metric_chunks c
WHERE c.month = {month_of_job} AND c.job_uid = $1 AND c.level = $2::smallint AND c.first_sequence > coalesce((
  SELECT u.last_sequence FROM metric_chunks u
  WHERE u.month = {month_of_job} AND u.job_uid = $1 AND u.level = $2::smallint + 1
  ORDER BY u.first_sequence DESC LIMIT 1), 0)
ORDER BY c.first_sequence, c.split, c.name
