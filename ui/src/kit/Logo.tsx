export function Logo({ size = 28 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" fill="none" aria-hidden="true">
      <g stroke="var(--accent-fill)" strokeLinecap="round" strokeLinejoin="round" strokeWidth="3.6">
        <path d="M5 7l8 9-8 9" strokeOpacity=".5" />
        <path d="M14 7l8 9-8 9" />
      </g>
      <circle cx="27.4" cy="16" r="2.3" fill="var(--accent-fill)" />
    </svg>
  );
}
