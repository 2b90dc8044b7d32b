-- How many points have which status, and why? Skipped points are counted by reason, without the figures after the colon.
SELECT status, CASE WHEN status IN ('skipped', 'ok') THEN split_part(coalesce(reason, ''), ':', 1) ELSE coalesce(reason, '') END AS reason,
       count(*) AS points
FROM current
GROUP BY ALL
