-- What happened to jobs: feed items, metrics and checkpoints.

-- name: InsertFeed
-- created: when the job was created, which says the month. Of kind ITEMS is a row that holds several, an array of
-- objects with the sequence, time, attempt, kind and body of each; its own sequence is that of the last.
INSERT INTO feed (job_uid, sequence, month, time, attempt, kind, body)
SELECT f.job_uid, f.sequence, month_of(from_micros(f.created)), from_micros(f.time), f.attempt, f.kind, f.body::jsonb
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[])
  AS f (job_uid, sequence, created, time, attempt, kind, body)


-- name: ReadFeeds
-- Of each job (its place in the arrays): items with their sequence, points of the table `metrics` among them; heads, of
-- which one may begin before, as may the first row of kind ITEMS; and the next chunks ($4), of which the first may. Of
-- kind SUBMITTED is the first item: no row says what the job itself does, but for jobs of older servers. What
-- one statement reads, it reads of one state. Not in order. One index range per job and table, whatever the plan takes
-- the arrays for.
SELECT w.place, items.*
FROM (SELECT p.uid, p.after, p.place, s.create_time, month_of(s.create_time) AS month
      FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS p (uid, after, place)
        JOIN job_specs s ON s.job_uid = p.uid) AS w
CROSS JOIN LATERAL (
  (SELECT f.sequence, micros(f.time) AS time, f.attempt, f.kind, f.body::text AS body,
          NULL::bigint AS step, NULL::smallint AS split, NULL::text[] AS names,
          NULL::double precision[] AS values, NULL AS name, NULL::integer AS points, NULL::bytea AS bytes
   FROM feed f WHERE f.month = w.month AND f.job_uid = w.uid AND f.sequence > w.after ORDER BY f.sequence LIMIT $3)
  UNION ALL
  (SELECT 1, micros(w.create_time), 0, 'SUBMITTED', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
   WHERE CASE WHEN w.after < 1  -- first, and mostly alone
     THEN NOT EXISTS (SELECT FROM feed f WHERE f.month = w.month AND f.job_uid = w.uid AND f.sequence = 1)
      AND (EXISTS (SELECT FROM jobs j WHERE j.uid = w.uid)
           OR EXISTS (SELECT FROM ended_jobs j WHERE j.uid = w.uid AND j.create_time = w.create_time)) END)
  UNION ALL
  (SELECT m.sequence, micros(m.time), m.attempt, 'METRIC', NULL, m.step, m.split, m.names, m.values, NULL, NULL, NULL
   FROM metrics m WHERE m.job_uid = w.uid AND m.sequence > w.after ORDER BY m.sequence LIMIT $3)
  UNION ALL
  (SELECT h.last_sequence, NULL, h.attempt, 'HEAD', NULL, NULL, NULL, NULL, NULL, NULL, h.points, h.bytes
   FROM metric_heads h
   WHERE h.month = w.month AND h.job_uid = w.uid AND h.last_sequence > w.after
     -- Heads do not overlap: none before this one reaches as far.
     AND h.first_sequence >= coalesce((
       SELECT b.first_sequence FROM metric_heads b
       WHERE b.month = w.month AND b.job_uid = w.uid AND b.first_sequence <= w.after
       ORDER BY b.first_sequence DESC LIMIT 1), 0)
   ORDER BY h.first_sequence LIMIT $3)
  UNION ALL
  (SELECT c.last_sequence, NULL, c.attempt, 'CHUNK', NULL, NULL, c.split, NULL, NULL, c.name, c.points, c.bytes
   FROM (SELECT i.first_sequence FROM metric_chunks i
         WHERE i.month = w.month AND i.job_uid = w.uid AND i.split = -1 AND i.last_sequence > w.after
         ORDER BY i.last_sequence LIMIT $4) n
   CROSS JOIN LATERAL (
     SELECT * FROM metric_chunks
     WHERE month = w.month AND job_uid = w.uid AND level = 0 AND first_sequence = n.first_sequence OFFSET 0) c
   ORDER BY c.first_sequence, c.split, c.name)
) AS items

-- name: ReadFeedStates
WITH w AS (
  SELECT w.place, w.uid, s.create_time
  FROM unnest($1::text[]) WITH ORDINALITY AS w (uid, place) JOIN job_specs s ON s.job_uid = w.uid
)
SELECT w.place, j.state, j.feed_sequence FROM w JOIN jobs j ON j.uid = w.uid
UNION ALL
SELECT w.place, j.state, j.feed_sequence FROM w JOIN ended_jobs j ON j.uid = w.uid AND j.create_time = w.create_time

-- name: ReadMetrics
SELECT m.sequence, micros(m.time) AS time, m.attempt, m.step, m.split, m.names, m.values, s.superseded
FROM metrics m CROSS JOIN LATERAL (SELECT {superseded} AS superseded) s
WHERE m.job_uid = $1 AND m.step BETWEEN $2 AND $3 AND m.split = ANY ($4::smallint[])
  AND (m.step, m.split, m.attempt) > ($5, $6::smallint, $7) AND ($8 OR NOT s.superseded)
ORDER BY m.step, m.split, m.attempt LIMIT $9

-- name: CurrentPoints
-- Points of the current series of each job in a range of steps.
SELECT w.place, m.step, m.split
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w (uid, from_step, to_step, place)
  JOIN metrics m ON m.job_uid = w.uid AND m.step BETWEEN w.from_step AND w.to_step
WHERE NOT {superseded}

-- name: UpsertCheckpoint
INSERT INTO checkpoints (job_uid, step, attempt, uri, bytes, manifest_sha256, weights_sha256, final,
                         create_time, metrics)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, from_micros($9), $10::jsonb)
ON CONFLICT (job_uid, step) DO UPDATE SET
  attempt = excluded.attempt, uri = excluded.uri, bytes = excluded.bytes,
  manifest_sha256 = excluded.manifest_sha256, weights_sha256 = excluded.weights_sha256,
  final = excluded.final, create_time = excluded.create_time, metrics = excluded.metrics

-- name: RemoveCheckpoints
DELETE FROM checkpoints WHERE job_uid = $1 AND uri = ANY ($2::text[])

-- name: ListCheckpoints
SELECT job_uid, step, attempt, uri, bytes, manifest_sha256, weights_sha256, final,
       micros(create_time) AS create_time, metrics::text AS metrics
FROM checkpoints WHERE job_uid = $1 ORDER BY step DESC LIMIT $2
