-- How many points have which status, and why? A skipped point's reason counts without the figures of its own.
SELECT status, CASE WHEN status IN ('skipped', 'ok') THEN split_part(coalesce(reason, ''), ':', 1) ELSE coalesce(reason, '') END AS reason,
       count(*) AS points
FROM current
GROUP BY ALL
