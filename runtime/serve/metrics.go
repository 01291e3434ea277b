package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

// metrics are an engine's own counters; those of pages and chunks are the cache's.
type metrics struct {
	scheduled, steps                               prometheus.Histogram
	tokens, reads, shared, spared, aborted, failed prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &metrics{
		scheduled: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kgen_schedule_seconds", Help: "Time of a Schedule, waiting for the device included.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 2, 16),
		}),
		steps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kgen_step_seconds", Help: "Time from Schedule to Commit of a step.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 2, 18),
		}),
		tokens:  counter("kgen_step_tokens_total", "Query tokens of committed steps."),
		reads:   counter("kgen_chunk_reads_total", "Chunks of sequences in committed steps."),
		shared:  counter("kgen_shared_reads_total", "Chunks of sequences in committed steps that a sequence before them in the step, or the same one, had too."),
		spared:  counter("kgen_shared_decode_spared_bytes_total", "Bytes of KV that decode alone would have read in committed steps, beyond those that were read."),
		aborted: counter("kgen_steps_aborted_total", "Steps that were rolled back."),
		failed:  counter("kgen_step_failures_total", "Steps that could not be scheduled, or that the device failed."),
	}
}

// Collector returns the engine's metrics for a Prometheus registry. Wrap the
// registry (prometheus.WrapRegistererWith) to tell engines apart by a label.
func (e *Engine) Collector() prometheus.Collector { return collector{e} }

type collector struct{ engine *Engine }

func (c collector) own() []prometheus.Collector {
	m := c.engine.metrics
	return []prometheus.Collector{m.scheduled, m.steps, m.tokens, m.reads, m.shared, m.spared, m.aborted, m.failed}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, o := range c.own() {
		o.Describe(ch)
	}
	for _, m := range cacheMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, o := range c.own() {
		o.Collect(ch)
	}
	s := c.engine.cache.Stats()
	for _, m := range cacheMetrics {
		value := m.value(&s)
		if m.bytes {
			value *= float64(c.engine.model.shape().PageBytes())
		}
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value)
	}
}

type cacheMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*kvcache.Stats) float64 // in pages for a metric of bytes
	bytes bool
}

var cacheMetrics = []cacheMetric{
	gauge("kgen_pages_free", "Pages that nobody holds.", func(s *kvcache.Stats) float64 { return float64(s.PagesFree) }),
	gauge("kgen_pages_used", "Pages that chunks and sequences hold.", func(s *kvcache.Stats) float64 { return float64(s.PagesUsed) }),
	gauge("kgen_pages_evictable", "Pages used by chunks that may be evicted.", func(s *kvcache.Stats) float64 { return float64(s.PagesEvictable) }),
	gaugeBytes("kgen_kv_bytes", "Bytes of KV that chunks and sequences hold.", func(s *kvcache.Stats) float64 { return float64(s.PagesUsed) }),
	gaugeBytes("kgen_kv_unshared_bytes", "Bytes of KV that the open sequences would hold if each had copies of its own.", func(s *kvcache.Stats) float64 { return float64(s.PagesUnshared) }),
	gauge("kgen_chunks", "Chunks on the device or in the host tier.", func(s *kvcache.Stats) float64 { return float64(s.Chunks) }),
	gauge("kgen_chunks_pinned", "Chunks that are pinned.", func(s *kvcache.Stats) float64 { return float64(s.Pinned) }),
	gauge("kgen_host_pages", "Pages used in the host tier.", func(s *kvcache.Stats) float64 { return float64(s.HostPages) }),
	gauge("kgen_host_pages_limit", "Pages that the host tier may have.", func(s *kvcache.Stats) float64 { return float64(s.HostPagesLimit) }),
	gauge("kgen_sequences", "Sequences that are open.", func(s *kvcache.Stats) float64 { return float64(s.Sequences) }),
	count("kgen_chunk_hits_total", "Documents that had a chunk when they were registered.", func(s *kvcache.Stats) int64 { return s.Hits }),
	count("kgen_chunk_misses_total", "Documents that had none.", func(s *kvcache.Stats) int64 { return s.Misses }),
	count("kgen_chunk_joins_total", "Registrations that waited for another's encode.", func(s *kvcache.Stats) int64 { return s.Joins }),
	count("kgen_encodes_total", "Chunks that were encoded.", func(s *kvcache.Stats) int64 { return s.Encodes }),
	count("kgen_encode_failures_total", "Encodes that failed.", func(s *kvcache.Stats) int64 { return s.EncodeFailures }),
	count("kgen_evictions_total", "Chunks that left the device to make room.", func(s *kvcache.Stats) int64 { return s.Evictions }),
	count("kgen_spills_total", "Chunks copied to the host tier.", func(s *kvcache.Stats) int64 { return s.Spills }),
	count("kgen_restores_total", "Chunks copied back from the host tier.", func(s *kvcache.Stats) int64 { return s.Restores }),
	count("kgen_host_drops_total", "Chunks that left the host tier to make room.", func(s *kvcache.Stats) int64 { return s.HostDrops }),
	count("kgen_to_host_bytes_total", "Bytes copied to the host tier.", func(s *kvcache.Stats) int64 { return s.BytesToHost }),
	count("kgen_from_host_bytes_total", "Bytes copied back from the host tier.", func(s *kvcache.Stats) int64 { return s.BytesFromHost }),
	count("kgen_page_copies_total", "Pages copied by writes behind a fork.", func(s *kvcache.Stats) int64 { return s.PageCopies }),
}

func gauge(name, help string, value func(*kvcache.Stats) float64) cacheMetric {
	return cacheMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value, false}
}

func gaugeBytes(name, help string, pages func(*kvcache.Stats) float64) cacheMetric {
	return cacheMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, pages, true}
}

func count(name, help string, value func(*kvcache.Stats) int64) cacheMetric {
	return cacheMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue,
		func(s *kvcache.Stats) float64 { return float64(value(s)) }, false}
}
