/* The CPU that a probe fires on (Dynamic Tracing Guide, "sched Provider"). */

typedef struct cpuinfo {
    processorid_t cpu_id; psetid_t cpu_pset; chipid_t cpu_chip; lgrp_id_t cpu_lgrp;
} cpuinfo_t;

translator cpuinfo_t < int C > { cpu_id = C; };

inline cpuinfo_t *curcpu = xlate < cpuinfo_t * > (cpu);
